"""Recordings that many tests read."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from foretrace.record.session import record
from tests.record.jobs import SHORT, SHORT_STEPS, run_recorded

# Tests run side by side, and so do the ranks of a job: each with threads for all cores would be slower, not faster.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step with a lookup, a linear layer and SGD. Only to be read."""
    table = torch.nn.EmbeddingBag(20, 8, mode="sum", sparse=True)
    layer = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *layer.parameters()], lr=0.1)
    ids, offsets = torch.tensor([1, 1, 1, 7, 7, 3]), torch.tensor([0, 2, 4])

    def step() -> None:
        optimizer.zero_grad()
        layer(table(ids, offsets)).square().mean().backward()
        optimizer.step()

    return record(step, tmp_path_factory.mktemp("recorded") / "run", **SHORT)


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOBS = {"ddp": ("gpt.py", "--ddp"), "fsdp": ("gpt.py", "--fsdp"), "hybrid": ("dlrm_distributed.py",)}
"""Examples on two ranks: data parallel, sharded weights, sharded tables with data-parallel layers."""


@pytest.fixture(scope="session")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the recording of a job of that name under torchrun and gloo. Each is made once, whoever asks first."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def recording(name: str) -> Path:
        out = common / f"on-two-ranks-{name}"
        with (common / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not out.exists():
                example, *options = JOBS[name]
                command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
                done = run_recorded(out, *command, EXAMPLES / example, *options, "--steps", SHORT_STEPS)
                assert done.returncode == 0, done.stderr
        return out

    return recording
