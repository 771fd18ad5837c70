"""The recorder's work waits until the job is outside of compiled calls and of optimizers' steps."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from foretrace.record.watch.compiled_calls import _thread, deferring, run_outside
from foretrace.record.watch.step_boundaries import listen
from tests.record.jobs import SHORT, SHORT_STEPS, foretrace, run_recorded, script


def frames() -> list[str]:
    return [f"{Path(frame.filename).name}:{frame.name}" for frame in traceback.extract_stack()]


def test_the_end_of_a_step_is_heard_outside_of_its_annotation() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    inside: list[list[str]] = []
    outside: list[list[str]] = []
    silence = listen(after=lambda _: inside.append(frames()), returned=lambda _: outside.append(frames()))
    optimizer.step()
    silence()
    assert "optimizer.py:wrapper" in inside[0], "which annotates it"
    assert "optimizer.py:wrapper" not in outside[0] and len(outside) == 1


def test_an_optimizer_inside_another_is_heard_outside_of_both() -> None:
    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step()
            events.append("in the step")

    events: list[str] = []
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    outer = Outer([torch.zeros(1)], lr=0.1)
    silence = listen(returned=lambda _: events.append("left"))
    outer.step()
    silence()
    assert events == ["in the step", "left", "left"]


def test_a_step_that_fails_is_not_heard_and_the_next_one_is() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            if not heard:
                heard.append("failed")
                raise KeyError("the job's own")

    heard: list[str] = []
    optimizer = Failing([torch.zeros(1)], lr=0.1)
    silence = listen(returned=lambda _: heard.append("left"))
    with pytest.raises(KeyError, match="the job's own"):
        optimizer.step()
    optimizer.step()
    silence()
    assert heard == ["failed", "left"]
    assert _thread.depth == 0 and _thread.waiting == []


def test_work_that_fails_leaves_no_work_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        deferring(lambda: run_outside(lambda: 1 / 0))()  # type: ignore[arg-type]
    assert _thread.depth == 0 and _thread.waiting == []


COMPILED = """
import json
import foretrace as ft
from foretrace.record.watch.step_boundaries import COMPILED, listen
from foretrace.record.watch.compiled_calls import _in_a_compiled_call, follow_compiled_calls
from torch._dynamo.utils import counters

class Own(torch.optim.Optimizer):  # PyTorch's own break the graph
    def __init__(self, weights):
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(weight.grad, alpha=-1.0)

weight = torch.ones(4, requires_grad=True)
weight.grad = torch.ones(4)
own = Own([weight])
early = torch.compile(lambda: own.step(), backend="eager", fullgraph=True)
early()

follow_compiled_calls()
heard = []
silence = listen(returned=lambda optimizer: heard.append([optimizer is COMPILED, _in_a_compiled_call()]))
update = torch.compile(lambda: own.step(), backend="eager", fullgraph=True)

@torch.compile(backend="eager")
def whole():
    (weight * weight).sum().backward()
    optimizer.step()

def did(function, *arguments):
    heard.clear()
    for _ in range(3):
        function(*arguments)
    return list(heard)

reported = {"eager": did(own.step), "fullgraph": did(update), "whole": did(whole), "early": did(early)}
reported["breaks"] = counters["graph_break"].total()
silence()

@torch.compile(backend="eager", fullgraph=True)
def saying():
    weight.mul(2)
    ft.step()

reported["nobody records"] = did(saying)
print(json.dumps(reported))
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is heard of compiled code. In a process of its own: compiling leaves traces in one."""
    path = script(tmp_path_factory.mktemp("outside"), COMPILED)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    heard: dict[str, Any] = json.loads(done.stdout)
    return heard


def test_a_compiled_step_is_heard_outside_of_the_compiled_call_and_breaks_no_graph(reported: dict[str, Any]) -> None:
    assert reported["eager"] == [[False, False]] * 3
    assert reported["fullgraph"] == [[True, False]] * 3, "a graph break would be an error"
    assert reported["whole"] == [[True, False]] * 3


def test_a_step_that_was_compiled_before_the_recorder_came_is_not_heard_inside_of_it(reported: dict[str, Any]) -> None:
    assert reported["early"] == []


def test_saying_that_a_step_ends_costs_compiled_code_nothing_where_nobody_records(reported: dict[str, Any]) -> None:
    assert reported["nobody records"] == []


SAYING = f"""
import foretrace as ft
weight = torch.ones(4)

@torch.compile(backend="eager", fullgraph=True)
def step():
    weight.mul_(0.9)
    ft.step()

for _ in range({SHORT_STEPS + 2}):
    step()
print(weight[0].item())
"""


@pytest.mark.slow
def test_a_step_that_compiled_code_says_ends_is_recorded(tmp_path: Path) -> None:
    done = run_recorded(tmp_path / "r", sys.executable, script(tmp_path, SAYING))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0.28")
    shown = foretrace("show", tmp_path / "r", "--json")
    assert shown.returncode == 0, shown.stderr


@pytest.mark.slow
def test_a_recording_that_begins_after_the_optimizer_was_compiled_says_why_it_saw_nothing(tmp_path: Path) -> None:
    late = f"""
import foretrace as ft
update = torch.compile(lambda: optimizer.step(), backend="eager")
def once():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    update()

once()
with ft.recording({str(tmp_path / "r")!r}, **{SHORT!r}):
    for _ in range({SHORT_STEPS + 5}):
        once()
print("trained")
"""
    done = subprocess.run([sys.executable, script(tmp_path, late)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "the optimizer's step was compiled before the recording began" in done.stderr
    assert "Begin the recording before torch.compile is called, or call foretrace.step()" in done.stderr
