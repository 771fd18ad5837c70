"""Compiled jobs are recorded and stay compiled. In processes of their own: compiling leaves traces in one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import foretrace as ft
from foretrace.formats.execution_trace import read_execution_trace
from foretrace.graph.op import COMPILED_REGION
from foretrace.platform.platform import Platform
from foretrace.record.recording import load_recording
from tests.record.jobs import SHORT, foretrace, run_recorded, script

pytestmark = pytest.mark.slow

COMPILED = f"""
import sys
import foretrace as ft
from torch.profiler import ProfilerActivity, profile

layers = torch.nn.Sequential(model, torch.nn.GELU(), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
run = torch.compile(layers)

def step():
    optimizer.zero_grad()
    run(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()

def compiled_regions():
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return sum(event.name.startswith("Torch-Compiled Region") for event in seen.events())

for _ in range(2):
    step()
before = compiled_regions()
from torch._dynamo.utils import counters
graphs = counters["stats"]["unique_graphs"]
ft.record_step(step, sys.argv[1], **{SHORT!r})
import json
reported = dict(before=before, after=compiled_regions(), recompiled=counters["stats"]["unique_graphs"] - graphs)
print(json.dumps(reported))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, script(folder, COMPILED), folder / "r"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "r", json.loads(done.stdout.splitlines()[-1])


def test_a_compiled_step_is_compiled_after_it_was_recorded_and_its_trace_is_kept(
    run: tuple[Path, dict[str, int]],
) -> None:
    out, reported = run
    assert reported["before"] > 0 and reported["after"] == reported["before"]
    assert reported["recompiled"] == 0
    assert (out / "rank-0" / "et.json.gz").stat().st_size > 0
    (graph,) = load_recording(out).graphs
    names = [op.name for op in graph.ops]
    assert "aten::gelu" not in names, "it is inside a compiled kernel"
    assert graph.steps and len(names) > 5
    assert any("compiled before the recording began" in note for note in graph.notes)


JOB = """
import sys
from torch._dynamo.utils import counters

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, given):
        return given + self.narrow(torch.nn.functional.gelu(self.wide(given)))

def train(kind):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(Block(), Block())
    optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1)
    given, run, update = torch.randn(4, 8), layers, optimizer.step
    if kind == "model":
        run = torch.compile(layers)
    elif kind == "reduce-overhead":
        run = torch.compile(layers, mode="reduce-overhead")
    elif kind == "regional":
        for layer in layers:
            layer.compile()
    elif kind == "optimizer":
        update = torch.compile(lambda: optimizer.step())

    def step():
        loss = run(given).square().mean()
        loss.backward()
        update()
        optimizer.zero_grad()
        return loss

    once = torch.compile(step) if kind == "whole step" else step
    counters.clear()
    losses = [once().item() for _ in range(16)]
    print(kind, losses, counters["stats"]["unique_graphs"], counters["graph_break"].total(), sep="|")

for kind in sys.argv[1:]:
    train(kind)
"""
KINDS = ("model", "reduce-overhead", "regional", "optimizer", "whole step")
PYTHON = (sys.executable, "-W", "error:Using `torch.compile(module)` when there are global hooks")
"""Compiled modules warn of hooks such as the recorder's, and there are jobs whose warnings are errors."""


@pytest.fixture(scope="module")
def unrecorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each kind of job prints without a recorder: its losses, and how much was compiled."""
    train = script(tmp_path_factory.mktemp("unrecorded"), JOB)
    done = subprocess.run([*PYTHON, train, *KINDS], capture_output=True, text=True, check=True)
    return {line.partition("|")[0]: line for line in done.stdout.splitlines(keepends=True)}


@pytest.fixture(scope="module")
def cpu() -> Platform:
    """A platform that runs steps of the CPU, with the costs of a GPU."""
    h200 = ft.load_platform("h200")
    assert h200.device is not None
    return replace(h200, device=replace(h200.device, kind="cpu", matches=""))


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_job_is_recorded_as_it_is_and_its_recording_can_be_read(
    tmp_path: Path, unrecorded: dict[str, str], cpu: Platform, kind: str
) -> None:
    done = run_recorded(tmp_path / "r", *PYTHON, script(tmp_path, JOB), kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout == unrecorded[kind], "same losses, as many graphs, as many graph breaks"
    (graph,) = load_recording(tmp_path / "r").graphs
    assert graph.steps and {op.phase for op in graph.ops} >= {"forward", "backward"}
    trace = read_execution_trace(tmp_path / "r" / "rank-0" / "et.json.gz")
    assert len(trace.ops) and not any("never written" in note for note in trace.notes)
    assert ft.predict(graph, on=cpu).step_ms > 0
    assert graph.programs and all(each.ops and each.kernels and not each.failed for each in graph.programs)
    marks = [op for op in graph.ops if op.name == COMPILED_REGION]
    assert {op.kwargs["program"] for op in marks} == set(range(len(graph.programs)))
    assert any(note.startswith("compiled: ") and "generated kernel" in note for note in graph.notes)
    for subcommand in ("show", *(["replay"] if kind in ("model", "whole step") else [])):
        read = foretrace(subcommand, tmp_path / "r", "--json")
        assert read.returncode == 0, read.stderr
        result = json.loads(read.stdout)
        if subcommand == "replay":
            assert result["coverage"]["calls"] == 1.0 and result["ops"]["compile::program"][0] == len(marks)
            assert not any("call by call" in note for note in result["notes"]), "it was compiled"
