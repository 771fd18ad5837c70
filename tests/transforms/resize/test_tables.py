"""Rows, dimension and pooling of embedding tables."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import bert
import dlrm
import gpt
from foretrace.graph import ForetraceError, Graph, OpTable
from foretrace.transforms.resize.tables import pooling, table_dim, table_rows
from foretrace.transforms.resize.width import width
from tests.transforms.agreement import assert_same, sketched, sketched_now


def test_all_tables_get_other_rows() -> None:
    assert_same(table_rows(sketched(dlrm), 5000), sketched(dlrm, rows=(5000,) * 4))


def test_many_tables_of_one_size_take_no_longer_than_few() -> None:
    assert_same(table_rows(sketched(dlrm, rows=(100,) * 16), 50), sketched(dlrm, rows=(50,) * 16))


def test_one_table_gets_other_rows() -> None:
    before = sketched(dlrm, rows=(10, 20, 300, 300))
    assert_same(table_rows(before, 77, "2"), sketched(dlrm, rows=(10, 20, 77, 300)))
    assert_same(table_rows(before, 77, "tables.2"), sketched(dlrm, rows=(10, 20, 77, 300)))


def test_a_vocabulary_is_a_table_and_positions_are_none() -> None:
    for model in (gpt, bert):  # BERT has a bias for each word
        assert_same(table_rows(sketched(model), 1000), sketched(model, vocabulary=1000))


def test_layers_follow_the_dimension_of_the_tables() -> None:
    assert_same(table_dim(sketched(dlrm), 24), sketched(dlrm, dim=24, bottom=(13, 32, 24)))


def test_layers_follow_the_dimension_of_any_number_of_tables() -> None:
    many = (100,) * 12  # more than the inputs that are changed otherwise for a call that can't go on
    assert_same(table_dim(sketched(dlrm, rows=many), 24), sketched(dlrm, rows=many, dim=24, bottom=(13, 32, 24)))


class Joined(dlrm.Dense):
    """Vectors put side by side and cut up again, as some DLRMs have it."""

    def forward(self, features: Tensor, looked_up: Sequence[Tensor]) -> Tensor:
        x = self.bottom(features)
        vectors = torch.cat([x, *looked_up], dim=1).view(len(x), -1, x.shape[1])
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, products], dim=1))


def test_layers_follow_where_all_concatenated_tensors_have_to_be_as_wide() -> None:
    with patch.object(dlrm, "Dense", Joined):
        before, truth = sketched_now(dlrm), sketched_now(dlrm, dim=24, bottom=(13, 32, 24))
    assert_same(table_dim(before, 24), truth)


def test_bags_hold_other_numbers_of_ids() -> None:
    assert_same(pooling(sketched(dlrm), 7), sketched(dlrm, pooling=7))


def test_an_unknown_table_is_refused_with_similar_names() -> None:
    with pytest.raises(ForetraceError, match=r"no table 'tabels.2'.*tables.2"):
        table_rows(sketched(dlrm), 77, "tabels.2")


def test_tables_without_names_are_selected_by_position() -> None:
    nameless = [op.__copy__() for op in sketched(dlrm).ops]
    for op in nameless:
        op.module = ""
    with pytest.raises(ForetraceError, match=r"no table '99'. There are 0, 1,"):
        table_rows(Graph(OpTable.of(nameless)), 77, "99")
    with pytest.raises(ForetraceError, match=r"no linear layer 'top.0'. It names none: traces lack modules"):
        width(Graph(OpTable.of(nameless)), 77, "top.0")


def test_a_step_without_bags_has_no_pooling() -> None:
    with pytest.raises(ForetraceError, match="has no embedding lookups"):
        pooling(sketched(gpt), 7)
