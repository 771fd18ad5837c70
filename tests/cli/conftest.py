"""The command line, run in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from foretrace.cli.app import run as run_subcommand
from tests.cli.samples import step_of_two_ops

SCRIPT = """
import torch

def make_step():
    with torch.device("cuda"):
        model, given = torch.nn.Linear(64, 8), torch.randn(32, 64)
    update = torch.optim.AdamW(model.parameters())

    def step():
        update.zero_grad()
        model(given).sum().backward()
        update.step()

    return step
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def foretrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `foretrace` with these arguments."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["foretrace", *map(str, arguments)])
        return Ran(run_subcommand(), *capsys.readouterr())

    return run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(step_of_two_ops()))
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script with a step that takes no time to sketch."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path
