"""Small training jobs to record, in this process and in others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from foretrace.graph import Graph, Op

FORETRACE = [sys.executable, "-m", "foretrace"]
SHORT: dict[str, Any] = {"plain": 2, "profile": 1, "warmup": 2}
"""The shortest schedule that has something of everything."""
SHORT_STEPS = 10
"""How many steps that takes: 2 of warm-up, 2 synced, 2 back to back, 2 profiled, structure, indices."""

Step = Callable[[], Any]


def small_step(optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> Step:
    """A linear layer and an optimizer; counts its calls in ``step.calls``."""
    model = torch.nn.Linear(8, 8)
    optim = optimizer(model.parameters(), lr=0.1)
    given = torch.ones(4, 8)

    def step() -> None:
        step.calls += 1  # type: ignore[attr-defined]
        optim.zero_grad()
        model(given).square().mean().backward()
        optim.step()

    step.calls = 0  # type: ignore[attr-defined]
    return step


def names_and_shapes(ops: Graph | list[Op]) -> list[tuple[str, list[tuple[int, ...]]]]:
    """What two watches of the same step must agree on."""
    listed = ops.ops if isinstance(ops, Graph) else ops
    return [(op.name, [tensor.shape for tensor in op.tensors]) for op in listed]


def foretrace(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would."""
    command = [*FORETRACE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def run_recorded(out: Path, *command: object, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Record a command with the short schedule."""
    schedule = [text for name, count in SHORT.items() for text in (f"--{name}", str(count))]
    return foretrace("record", "--out", out, *schedule, *options, "--", *command)


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    """A file with a training script: ``step`` is there, and trains a linear layer."""
    path = folder / name
    path.write_text(PRELUDE + text)
    return path


PRELUDE = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
"""
