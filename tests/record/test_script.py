"""Sketching the step of a script."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foretrace.graph import ForetraceError
from foretrace.graph.graph import cautions
from foretrace.record.script import ScriptError, check_source, sketch_script
from foretrace.record.sketch.sketch import sketch
from foretrace.record.sketch_process import IDLE_S

BUILDS = """
import torch
def make_step():
    model = torch.nn.Linear(4, 4)
    def step():
        print("a step")
        model(torch.ones(2, 4)).sum().backward()
    return step
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_a_script_that_builds_a_step_is_sketched(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(BUILDS)
    graph = sketch_script(script)
    assert "aten::addmm" in [op.name for op in graph.ops]
    assert graph.source == str(script)
    said = capsys.readouterr()
    assert not said.out and "a step" in said.err  # what a script prints must not get into the answer


def test_a_function_of_another_name_can_be_named(script: Path) -> None:
    script.write_text("import torch\ndef once():\n    torch.ones(2).relu()\n")
    assert [op.name for op in sketch_script(script, "once").ops] == ["aten::ones", "aten::relu"]


def test_a_script_finds_what_lies_beside_it_and_no_arguments(script: Path) -> None:
    (script.parent / "beside_it.py").write_text("SIZE = 3\n")
    script.write_text("import sys\nfrom beside_it import SIZE\nimport torch\nassert len(sys.argv) == 1\n"
                      "def step():\n    torch.ones(SIZE)\n")  # fmt: skip
    before = list(sys.path)
    assert sketch_script(script).ops[0].produced[0].shape == (3,)
    assert sys.path == before


def test_on_a_pretended_gpu_the_script_finds_one(script: Path) -> None:
    script.write_text(
        "import torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "def step():\n    torch.ones(4, device=DEVICE).relu()\n"
    )
    assert sketch_script(script, device="cuda").ops[1].produced[0].device.startswith("cuda")


def test_a_script_that_fails_shows_its_own_frames_only(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(BUILDS.replace("torch.ones(2, 4)", "torch.ones(2, 5)"))
    with pytest.raises(ScriptError, match="failed while its step was sketched") as failed:
        sketch_script(script)
    assert "train.py" in failed.value.frames and "model(torch.ones(2, 5))" in failed.value.frames
    assert "site-packages" not in failed.value.frames and "foretrace" not in failed.value.frames
    assert f"python {script}. If it runs" in failed.value.advice and "foretrace record" in failed.value.advice
    assert "Traceback" not in capsys.readouterr().err  # PyTorch's own


def test_a_model_in_the_place_of_a_step_is_said(script: Path) -> None:
    script.write_text("from torch import nn\nclass Net(nn.Module):\n    pass\n")
    with pytest.raises(ForetraceError, match=r"train\.py:Net is a model, not a step"):
        sketch_script(script, "Net")


def test_a_shape_that_depends_on_data_is_named_with_the_line_and_the_way_out(script: Path) -> None:
    script.write_text("import torch\ndef step():\n    return torch.randn(4).long().bincount()\n")
    with pytest.raises(ScriptError, match=r"aten\.bincount") as failed:
        sketch_script(script)
    assert "line 3, in step" in failed.value.frames
    assert f"foretrace record --out DIR -- python {script}" in failed.value.advice


NOTHING = "def step():\n    pass\n"
HIDDEN = f"""
try:
    import wonders
except ImportError as error:
    raise RuntimeError("could not import Trainer") from error
{NOTHING}"""
OPERATOR = """
import torch
library = torch.library.Library("of_a_script", "DEF")
library.define("odd(Tensor x) -> Tensor")
library.impl("odd", lambda x: x * 2, "CPU")
def step():
    torch.ops.of_a_script.odd(torch.ones(4))
"""

DECORATED = """
import torch
@torch.library.custom_op("of_a_script::even", mutates_args=())
def even(x: torch.Tensor) -> torch.Tensor:
    return x * 2
def step():
    even(torch.ones(4))
"""


@pytest.mark.parametrize(
    ("text", "said", "advice"),
    [
        (f"import wonders\n{NOTHING}", "No module named 'wonders'", "install wonders here"),
        ("def step(:\n", "SyntaxError", "that Python 3"),
        (f"import sys\nsys.exit(3)\n{NOTHING}", "SystemExit: 3", "without arguments: give its options defaults"),
        ("import sys\ndef step():\n    sys.exit(3)\n", "SystemExit: 3", "leave that out of the step"),
        (
            "import requests\ndef step():\n    requests.get('http://a.b/c').json()\n",
            "JSONDecodeError",
            "has no network",
        ),
        (
            "import socket\ndef step():\n    int(socket.create_connection(('a.b', 80)).recv(9))\n",
            "b''",
            "nothing came for",
        ),
        (f"open('weights.pt')\n{NOTHING}", "No such file", "start Foretrace where the script is started"),
        (f"import os\nos.environ['RANK']\n{NOTHING}", "KeyError: 'RANK'", "finds it a group with --world N"),
        (
            "import torch\ndef step():\n    torch.randn(4).numpy()\n",
            r"\.numpy\(\)",
            "no values, and the script needs",
        ),
        (f"raise RuntimeError('no libcuda.so.1')\n{NOTHING}", "libcuda", "only a real GPU has"),
        (HIDDEN, "the first error was ModuleNotFoundError: No module named 'wonders'", "install wonders here"),
        (DECORATED, r"the output shapes of of_a_script\.even\.default are unknown", "torch.library.register_fake"),
        (OPERATOR, r"the output shapes of of_a_script\.odd\.default are unknown", "torch.library.register_fake"),
    ],
)
def test_advice_goes_with_the_failure(script: Path, text: str, said: str, advice: str) -> None:
    script.write_text(text)
    with pytest.raises(ScriptError, match=said) as failed:
        sketch_script(script)
    assert advice in failed.value.advice


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit()"])
def test_what_a_step_does_before_it_ends_the_program_is_the_step(script: Path, end: str) -> None:
    script.write_text(f"import os, sys, torch\ndef step():\n    torch.ones(4).exp()\n    {end}\n")
    graph = sketch_script(script)
    assert [op.name for op in graph.ops] == ["aten::ones", "aten::exp"]
    assert any("end the program" in note for note in graph.notes)


def test_importing_a_network_library_is_no_side_effect(script: Path) -> None:
    script.write_text(f"import requests, urllib3\n{NOTHING}")
    assert not sketch_script(script).notes


LOADING = """
import queue, threading, torch
batches = queue.Queue(maxsize=1)
model = torch.nn.Linear(4, 4)
def load():
    for number in range(100):
        if number == {failing}:
            raise ValueError("no such file")
        batches.put(torch.ones(2, 4) * 2)
threading.Thread(target=load, daemon=True).start()
def step():
    model(batches.get()).sum().backward()
"""


def test_threads_that_load_batches_work_on_fake_tensors_and_are_no_part_of_the_step(script: Path) -> None:
    script.write_text(LOADING.format(failing=-1))
    graph = sketch_script(script)
    assert not {"aten::ones", "aten::mul"} & set(graph.ops.names.items)
    assert "what threads of the script compute is not part of the step (train.py:10)" in graph.notes


def test_a_thread_that_fails_is_said_at_once_by_the_step_that_waits_for_it(script: Path) -> None:
    script.write_text(LOADING.format(failing=1))
    begun = time.monotonic()
    with pytest.raises(ScriptError, match=r"waits at train.py:12") as failed:
        sketch_script(script)
    assert "train.py:8 (ValueError: no such file)" in failed.value.advice
    assert time.monotonic() - begun < IDLE_S


def test_a_model_that_is_called_in_threads_is_a_caution(script: Path) -> None:
    script.write_text(
        "import threading, torch\nmodel = torch.nn.Linear(4, 4)\ndef step():\n"
        "    thread = threading.Thread(target=model, args=(torch.ones(2, 4),))\n    thread.start(); thread.join()\n"
        "    torch.ones(4).exp()\n"
    )
    (caution,) = cautions(sketch_script(script).notes)
    assert caution.startswith("work of threads is left out: ") and "train.py:5" in caution


def test_a_failure_that_may_follow_from_an_assumed_value_names_its_line(script: Path) -> None:
    script.write_text(
        "import torch\ndef step():\n    loss = torch.randn(4).mean()\n    if loss.item() < 0.5:\n        found = loss\n"
        "    found.exp()\n"
    )
    with pytest.raises(ScriptError, match="UnboundLocalError") as failed:
        sketch_script(script)
    assumed = f"Before it failed, the sketch assumed 1 for a number that is compared ({script.name}:4)"
    assert assumed in failed.value.advice


def test_a_script_without_a_step_is_refused_before_it_is_imported(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("print('imported')\ndef train():\n    def step(): pass\nif True:\n    def main(): pass\n")
    with pytest.raises(ForetraceError, match="no function make_step or step") as refused:
        sketch_script(script)
    assert "It has main, train." in refused.value.advice
    assert "its top level runs, on fake tensors and without side effects" in refused.value.advice
    assert "imported" not in capsys.readouterr().err
    with pytest.raises(ForetraceError, match="no function build"):
        sketch_script(script, "build")
    script.write_text("print('imported')\nfor step in range(3): pass\n")
    with pytest.raises(ForetraceError, match="no function make_step or step"):
        sketch_script(script)
    assert "imported" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "from beside_it import step",
        "from beside_it import once as step",
        "import beside_it\nstep = beside_it.once",
        "from beside_it import *",
        "def define():\n    global step\n    from beside_it import step\ndefine()",
        "try:\n    from nowhere import step\nexcept ImportError:\n    from beside_it import step",
    ],
)
def test_a_step_function_may_come_from_elsewhere(script: Path, text: str) -> None:
    (script.parent / "beside_it.py").write_text("import torch\ndef step():\n    torch.ones(2)\nonce = step\n")
    script.write_text(text)
    check_source(script)  # that it is found then is shown above: a process for each would take long


def test_the_top_level_runs_once_and_is_no_part_of_the_step(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("import torch\nprint('top level')\nmodel = torch.nn.Linear(4, 4)\n"
                      "def step():\n    model(torch.ones(2, 4))\n")  # fmt: skip
    names = [op.name for op in sketch_script(script).ops]
    assert "aten::uniform_" not in names and "aten::addmm" in names
    assert capsys.readouterr().err.count("top level") == 1


def test_what_python_lets_a_module_do_a_script_may(script: Path) -> None:
    script.write_text(
        '"""Doc."""\nfrom __future__ import annotations\nimport sys, dataclasses, torch\n"a remark"\n'
        "@dataclasses.dataclass\nclass Sizes:\n    rows: Unknown = 3\n"
        "assert __doc__ == 'Doc.' and __name__ == 'train' and __file__.endswith('train.py')\n"
        "assert sys.modules['train'].Sizes is Sizes and Sizes.__annotations__ == {'rows': 'Unknown'}\n"
        "def step():\n    torch.ones(Sizes().rows)\n"
    )
    assert sketch_script(script).ops[0].produced[0].shape == (3,)


def test_a_graph_comes_back_from_the_process_as_it_was_there(script: Path) -> None:
    script.write_text(BUILDS.replace("torch.ones(2, 4)", "torch.ones(2, 4) * float('inf')"))
    names = dict[str, Any]()
    exec(compile(script.read_text(), str(script), "exec"), names)
    here, there = sketch(names["make_step"]), sketch_script(script)
    assert list(map(repr, there.ops)) == list(map(repr, here.ops))
    assert there.storages == here.storages and there.settings == here.settings and there.notes == here.notes


def test_a_step_that_needs_arguments_is_refused(script: Path) -> None:
    script.write_text("def step(batch, lr=0.1):\n    pass\n")
    with pytest.raises(ForetraceError, match="can't be called without batch"):
        sketch_script(script)


def test_a_script_that_is_not_there_is_named(script: Path) -> None:
    with pytest.raises(ForetraceError, match=r"train\.py does not exist"):
        sketch_script(script)
