"""Fused lookups: compared with a model written so."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import dlrm
import gpt
from foretrace.graph import ForetraceError, Graph, Indices
from foretrace.transforms.fusion.lookups import fuse_lookups
from tests.transforms.agreement import assert_same, sketched, sketched_now


class Joined(nn.Module):
    """A DLRM whose tables are one: it is asked for the ids of all of them at once."""

    def __init__(self, shape: dlrm.Shape) -> None:
        super().__init__()
        count = shape.batch * shape.pooling * len(shape.rows)
        self.table, self.dense = dlrm.table(sum(shape.rows), shape.dim), dlrm.Dense(shape)
        self.ids, self.offsets = torch.randint(sum(shape.rows), (count,)), torch.arange(0, count, shape.pooling)

    def forward(self, features: Tensor, ids: object, offsets: object) -> Tensor:
        looked_up = self.table(self.ids, self.offsets).view(-1, features.shape[0], self.table.embedding_dim)
        return self.dense(features, looked_up.unbind(0))


def joined(**shape: Any) -> Graph:
    with patch.object(dlrm, "DLRM", Joined):
        return sketched_now(dlrm, **shape)


def test_tables_of_different_sizes_become_one() -> None:
    rows = (100, 300, 50)
    assert_same(fuse_lookups(sketched(dlrm, rows=rows)), joined(rows=rows))


def test_the_optimizer_keeps_the_state_of_one_table() -> None:
    def dense(rows: int, dim: int) -> nn.EmbeddingBag:
        return nn.EmbeddingBag(rows, dim, mode="sum")

    adagrad = {"optimizer": "adagrad"}  # walks lists, and counts the steps of each weight
    with patch.object(dlrm, "table", dense):
        assert_same(fuse_lookups(sketched_now(dlrm, options=adagrad)), joined(options=adagrad))


def test_what_is_known_of_the_ids_of_all_tables_is_known_of_the_one() -> None:
    step = sketched(dlrm, rows=(100, 300))
    step.indices = [Indices(row, 100, 512, 100, 128, (0, 60, 40)[: row + 2]) for row in range(2)]
    found = fuse_lookups(step).indices
    assert [(each.rows, each.count, each.unique, each.bags) for each in found] == [(200, 1024, 200, 256)]
    assert found[0].reuse == (0, 120, 40)


def test_a_step_with_nothing_to_join_says_so() -> None:
    for step in (sketched(gpt), sketched(dlrm, rows=(100,))):
        with pytest.raises(ForetraceError, match="no two lookups that can be fused"):
            fuse_lookups(step)
