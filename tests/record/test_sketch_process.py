"""The process in which a script is sketched: how it starts, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from foretrace.cli.main import PRELOADED
from foretrace.errors import ForetraceError
from foretrace.graph.op import COMPILED_REGION
from foretrace.processes import is_alive
from foretrace.record import sketch_process
from foretrace.record.script import sketch_script
from foretrace.record.sketch_process import start_ahead

pytestmark = pytest.mark.cold
PATIENCE_S = 60
STEP = "def step():\n    torch.ones(2)\n"
SLEEPS = f"""
import os, signal, sys, time, torch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pid", os.getpid(), file=sys.stderr, flush=True)
while True:
    try: time.sleep(600)
    except BaseException: pass
{STEP}"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def ends(pid: int) -> bool:
    for _ in range(10 * PATIENCE_S):
        if not is_alive(pid):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_the_one_that_asked(script: Path, end: signal.Signals) -> None:
    script.write_text(SLEEPS)
    command = [sys.executable, "-m", "foretrace", "predict", str(script)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(script.parent)}
    ) as asks:
        assert asks.stderr is not None
        pid = int(next(line for line in asks.stderr if "sketching" not in line).split()[1])
        assert pid != asks.pid and is_alive(pid)
        asks.send_signal(end)
        assert asks.wait(PATIENCE_S) == (130 if end == signal.SIGINT else -end)
    assert ends(pid)


def test_one_that_crashes_is_reported_in_one_line(script: Path) -> None:
    script.write_text(f"import ctypes, torch\nctypes.string_at(0)\n{STEP}")
    with pytest.raises(ForetraceError, match=r"train\.py: the process that sketched it was ended by SIGSEGV"):
        sketch_script(script)


def test_nothing_of_it_is_left_behind(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(script.parent))
    script.write_text(f"import os, torch\nopen('new.txt', 'w').write('x')\n{STEP}")
    assert "new.txt" in sketch_script(script).notes[0]
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]


def test_one_that_was_started_ahead_is_taken(script: Path) -> None:
    script.write_text(f"import os, torch\ntorch.ones(2, os.getpid())\n{STEP.replace('2', 'os.getpid()')}")
    start_ahead()
    pid = sketch_process._ahead[0]._process.pid
    assert sketch_script(script).ops[0].produced[0].shape == (pid,)
    assert ends(pid) and not sketch_process._ahead


def test_one_that_was_not_needed_ends(script: Path) -> None:
    start_ahead()
    pid = sketch_process._ahead[0]._process.pid
    sketch_process._end_ahead()
    assert ends(pid)


def test_what_is_imported_meanwhile_is_there() -> None:
    assert all(map(import_module, PRELOADED))


def test_without_pytorch_it_says_what_to_install(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = script.parent / "missing"
    missing.mkdir()
    (missing / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')\n")
    monkeypatch.syspath_prepend(missing)
    script.write_text(f"import torch\n{STEP}")
    with pytest.raises(ForetraceError, match="sketching a script needs PyTorch") as refused:
        sketch_script(script)
    assert "pip install torch" in refused.value.advice


def test_it_finds_what_the_caller_finds(
    script: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "sizes.py").write_text("ROWS = 3\n")
    monkeypatch.syspath_prepend(elsewhere)
    monkeypatch.chdir(script.parent)
    monkeypatch.setenv("COLUMNS_OF_IT", "4")
    (script.parent / "data.txt").write_text("5")
    script.write_text(
        "import os, torch\nfrom sizes import ROWS\n"
        "SHAPE = ROWS, int(os.environ['COLUMNS_OF_IT']), int(open('data.txt').read())\n"
        "def step():\n    torch.ones(SHAPE)\n"
    )
    assert sketch_script(Path("train.py")).ops[0].produced[0].shape == (3, 4, 5)


def test_what_a_script_prints_by_any_way_goes_to_standard_error(script: Path) -> None:
    script.write_text(
        f"import os, torch\nprint('by print')\nos.write(1, b'by number\\n')\nos.system('echo by shell')\n{STEP}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "foretrace", "predict", script, "--on", "h200", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stderr.splitlines()
    assert "by print" in printed and "by number" in printed and "by shell" not in printed
    assert any("run echo by shell" in note for note in json.loads(done.stdout)["notes"])


def test_a_script_that_waits_for_what_never_comes_is_ended_with_its_line(tmp_path: Path) -> None:
    waits = tmp_path / "waits.py"
    waits.write_text(
        "import queue\n"
        "from foretrace.record.sketch_process import end_when_idle\n"
        "end_when_idle(0.2)\n"
        "while True:\n"
        "    try: queue.Queue().get()\n"
        "    except Exception: pass\n"
    )
    ended = subprocess.run([sys.executable, str(waits)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.stderr.splitlines()[-1].endswith("WaitsError: at waits.py:5")


def test_a_sketch_may_wait_for_who_reads_it(script: Path, tmp_path: Path) -> None:
    script.write_text(f"import torch\n{STEP}")
    program = tmp_path / "sketches.py"
    program.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from foretrace.record import sketch_process\n"
        "from foretrace.record.command import Script\n"
        "sketch_process.end_when_idle.__defaults__ = (0.5,)\n"
        "path, scratch = sys.argv[1:]\n"
        "how = {**Script(Path(path))._asdict(), 'path': path}\n"
        "sketch_process._sketch({'scratch': scratch, 'how': how, 'device': None, 'world': None})\n"
        "time.sleep(3)\n"
        "print('still there', flush=True)\n"
    )
    (tmp_path / "scratch").mkdir()
    words = [sys.executable, str(program), str(script), str(tmp_path / "scratch")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert "still there" in done.stdout + done.stderr


TRAINS = """
import sys, torch
def make_step():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        optimizer.zero_grad()
        (model(torch.randn(2, 4)) * torch.tensor(3.0)).sum().backward()
        optimizer.step()
        {last}
    return step
"""


def test_torchdynamo_is_not_imported_for_a_script_that_compiles_nothing(script: Path) -> None:
    script.write_text(
        TRAINS.format(last="torch.ones(2 + any(name.endswith('namo.convert_frame') for name in sys.modules))")
    )
    assert sketch_script(script).ops[-1].produced[0].shape == (2,)


def test_a_module_of_a_script_that_looks_into_torchdynamo_finds_it(script: Path) -> None:
    (script.parent / "helper.py").write_text("from torch._dynamo.utils import counters\n")
    script.write_text(TRAINS.format(last="from helper import counters; torch.ones(2 + len(counters))"))
    assert sketch_script(script).ops[-1].produced[0].shape == (2,)


def test_a_script_whose_own_module_compiles_is_sketched_with_torchdynamo_after_all(script: Path) -> None:
    (script.parent / "helper.py").write_text("import torch\nfast = torch.compile(lambda x: (x * 2).sin())\n")
    script.write_text("import torch\nfrom helper import fast\ndef step():\n    fast(torch.ones(8, device='cuda'))\n")
    graph = sketch_script(script, device="cuda")
    assert COMPILED_REGION in {op.name for op in graph.ops} and not graph.notes
