"""Compiled functions are sketched as they were written, and the graph says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretrace.record.sketch.fake_step import compilation_disabled
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.profile import something_is_compiled
from tests.record.jobs import names_and_shapes, script

NOTE = "torch.compile was left out: {} predicted as eager code"
ONE = NOTE.format("1 compiled region is")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, given: torch.Tensor) -> Any:
        return given + self.narrow(torch.nn.functional.gelu(self.wide(given)))


def building(kind: str, device: str) -> Callable[[], Callable[[], Any]]:
    """A function that builds a step in which something is compiled."""

    def build() -> Callable[[], Any]:
        layers = torch.nn.Sequential(Block(), Block()).to(device)
        optimizer = torch.optim.AdamW(layers.parameters())
        run: Any = layers
        update: Any = optimizer.step
        if kind == "model":
            run = torch.compile(layers)
        elif kind == "max-autotune":
            run = torch.compile(layers, mode="max-autotune", fullgraph=True)
        elif kind == "regional":
            for layer in layers:
                layer.compile()
        elif kind == "optimizer":
            update = torch.compile(lambda: optimizer.step())

        def step() -> None:
            run(torch.randn(4, 8, device=device)).square().mean().backward()
            update()
            optimizer.zero_grad()

        return torch.compile(step) if kind == "whole step" else step

    return build


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("model", ONE),
        ("max-autotune", ONE),
        ("regional", NOTE.format("2 compiled regions are")),
        ("optimizer", ONE),
        ("whole step", ONE),
    ],
)
def test_a_compiled_step_is_sketched_as_eager_code_and_says_so(kind: str, note: str, device: str) -> None:
    graph = sketch(building(kind, device), device)
    assert note in graph.notes
    eager = sketch(building("", device), device)
    assert names_and_shapes(graph) == names_and_shapes(eager)
    assert not any("compile" in note for note in eager.notes)
    assert not something_is_compiled()


def test_a_compile_that_a_script_keeps_is_torchs_own_after_the_sketch() -> None:
    with compilation_disabled():
        kept = torch.compile
    compiled = kept(torch.neg, backend="eager")
    assert torch.compiler._is_compiling_flag is False
    with compilation_disabled() as regions:
        assert compiled(torch.ones(1)).item() == -1
    assert regions.notes == [ONE]


@pytest.mark.slow
def test_a_step_that_was_compiled_before_is_sketched_and_still_compiled_after(tmp_path: Path) -> None:
    train = """
import foretrace as ft
from torch._dynamo.utils import counters
model.compile(backend="aot_eager")
step = torch.compile(step, backend="aot_eager")
step()
weight, graphs = model.weight.detach().clone(), counters["stats"]["unique_graphs"]
print(graphs > 0, *ft.sketch(step).notes, sep="|")
print(bool((weight == model.weight).all()))
step()
print(bool((weight == model.weight).all()), counters["stats"]["unique_graphs"] - graphs)
"""
    done = subprocess.run([sys.executable, script(tmp_path, train)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *then = done.stdout.splitlines()
    assert first.startswith("True|") and "torch.compile was left out" in first
    assert then == ["True", "False 0"]
