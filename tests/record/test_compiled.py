"""Compiled steps are recorded and stay compiled. In processes of their own: compiling leaves traces in one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace.record.recording import load_recording
from tests.record.jobs import SHORT, script

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
ft.record(step, sys.argv[1], **{SHORT!r})
import json
told = dict(before=before, after=compiled_regions(), recompiled=counters["stats"]["unique_graphs"] - graphs)
print(json.dumps(told))
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
    out, told = run
    assert told["before"] > 0 and told["after"] == told["before"]
    assert told["recompiled"] == 0
    assert (out / "rank-0" / "et.json.gz").stat().st_size > 0
    (graph,) = load_recording(out).graphs
    names = [op.name for op in graph.ops]
    assert "aten::gelu" not in names, "it is inside a compiled kernel"
    assert graph.steps and len(names) > 5
