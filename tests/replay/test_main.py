"""``python run.py``: what it says, and how it ends."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foretrace.graph import Graph, Job, Op, OpTable, Tensor
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.folder import write_benchmark, write_job
from foretrace.replay.harness.main import parser
from foretrace.replay.running import How, run_benchmark
from tests import warm

pytestmark = pytest.mark.usefixtures("warmed")


def tensor(number: int) -> Tensor:
    return Tensor((4,), "float32", "cpu", (1,), id=number, storage=number)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ops = [
        Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default"),
        Op("aten::neg", (tensor(1),), outputs=(tensor(2),), overload="default"),
    ]
    return write_benchmark(Graph(OpTable.of(ops)), tmp_path / "bench", Choices())


def said(folder: Path, *options: str, code: int = 2) -> str:
    """What a run that ends with this code says, in one line."""
    done = warm.run([sys.executable, str(folder / "run.py"), *options])
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("run.py: ")


def without_line(name: str, text: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(line for line in lines if text not in line))

    return change


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (without_line("step.py", "aten.relu"), r"bench/step.py, line \d+: no line before it makes t1; put back"),
        (
            replaced("step.py", "    t2 = ", "    del t1\n    t2 = "),
            r"bench/step.py, line \d+: no line before it makes t1; put back",
        ),
        (replaced("step.py", "def step(", "def stepped("), "bench/step.py has no function step; name it so again"),
        (
            replaced("step.py", "aten.relu.default(", "aten.relu.default(("),
            r"step.py, line \d+: '\(' was never closed: ",
        ),
        (replaced("step.py", "    begin()", "    1 / 0"), r"line \d+: ZeroDivisionError: division by zero; correct"),
        (replaced("inputs.py", "t0 = ", "t9 = "), "inputs.py makes no t0, which step.py asks for; write"),
        (
            replaced("inputs.py", "t0 = ", "t0 = nothing + "),
            r"bench/inputs.py, line \d+: no line before it makes nothing",
        ),
        (lambda folder: (folder / "calls.json").write_text('{"device": "cp'), "calls.json is damaged .*; write the"),
        (lambda folder: (folder / "calls.json").write_text("{}"), "bench/calls.json has no device, .*; write the"),
        (lambda folder: (folder / "original.json").unlink(), "bench/original.json is missing; write the"),
        (
            replaced("calls.json", '"memory":{', '"memory":3,"old":{'),
            "TypeError: .*: a file of this benchmark is damaged",
        ),
        (
            replaced("step.py", "import torch", "import gone"),
            r"line \d+: No module named 'gone'; install what is missing",
        ),
        (lambda folder: (folder / "harness/host.py").unlink(), "No module named 'harness.host'; write the"),
        (lambda folder: (folder / "harness/main.py").unlink(), "No module named 'harness.main'; write the"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(folder: Path, damage: Callable[[Path], object], line: str) -> None:
    damage(folder)
    assert re.search(line, said(folder))


def test_a_call_that_the_machine_has_no_room_for_is_named_with_its_arguments(folder: Path) -> None:
    replaced("step.py", "aten.neg.default(t1)", "aten.repeat.default(t1, [1 << 50])")(folder)
    assert re.search(r"bench/step.py, line \d+: .*aten.repeat.default\(t1, \[1 << 50\]\).*: .*", said(folder, code=1))


def test_a_gpu_that_is_not_there_is_said_in_a_line(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert said(folder, "--device", "cuda") == "there is no GPU here; leave out --device cuda"


def test_of_several_ranks_one_says_what_is_wrong(tmp_path: Path) -> None:
    ops = OpTable.of([Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default")])
    job = write_job(Job([Graph(ops, rank=rank, world=2) for rank in (0, 1)], "job"), tmp_path / "job", Choices())
    for path in job.glob("rank-*/original.json"):
        path.unlink()
    assert said(job) == "rank-0/original.json is missing; write the benchmark again with foretrace benchmark"


def test_a_rank_that_crashes_is_named(tmp_path: Path) -> None:
    ops = OpTable.of([Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default")])
    job = write_job(Job([Graph(ops, rank=rank, world=2) for rank in (0, 1)], "job"), tmp_path / "job", Choices())
    replaced("harness/collectives.py", "received: dict[int, Fill] = {}", "import os; os.abort()")(job)
    assert re.fullmatch(r"rank [01] was ended by SIGABRT", said(job, code=1).splitlines()[-1])


def test_a_rank_that_is_not_there_is_refused(folder: Path) -> None:
    assert said(folder, "--alone", "3") == "there is no rank 3: this benchmark has one; leave out --alone"


def test_who_interrupts_it_gets_no_traceback(folder: Path) -> None:
    replaced("step.py", "    begin()", "    raise KeyboardInterrupt")(folder)
    assert said(folder, code=130) == "interrupted"


def test_its_words_are_those_of_foretrace_replay(folder: Path) -> None:
    options = ("--json", "--counters", "--iterations", "2", "--device", "cpu")
    words = json.loads(warm.run([sys.executable, str(folder / "run.py"), *options]).stdout)
    assert words["world"] == 1 and words["ranks"] is None
    assert words.keys() == run_benchmark(folder, How(iterations=1)).to_dict().keys()
    assert any("nothing is counted on the cpu" in note for note in words["notes"])
    assert "there is no original to compare with: the recording timed no unprofiled steps" in words["notes"]


def test_a_step_of_meta_tensors_has_no_time(folder: Path) -> None:
    found = run_benchmark(folder, How(device="meta"))
    assert found.step_ms is found.low_ms is found.step_ms_back_to_back is found.kernel_ms is None
    assert found.peak_memory_bytes == 48 and any("no time" in note for note in found.notes)


def test_how_slow_the_host_shall_be_is_a_number_of_times() -> None:
    assert parser().parse_args(["--slow-host", "1.5"]).slow_host == 1.5
    for wrong in ("0", "-1", "soon", "nan", "1e9"):
        with pytest.raises(SystemExit):
            parser().parse_args(["--slow-host", wrong])
