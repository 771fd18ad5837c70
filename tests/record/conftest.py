"""Recordings that many tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretrace.record.watch.session import record_step
from tests.record.jobs import SHORT


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

    return record_step(step, tmp_path_factory.mktemp("recorded") / "run", **SHORT)
