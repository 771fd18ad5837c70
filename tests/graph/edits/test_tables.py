"""Tables with other rows, dimensions and pooling."""

from __future__ import annotations

import pytest

import dlrm
import gpt
from foretrace.graph import ForetraceError
from foretrace.graph.edits.tables import pooling, table_dim, table_rows
from tests.graph.edits.agreement import assert_same, sketched


def test_all_tables_get_other_rows() -> None:
    assert_same(table_rows(sketched(dlrm), 5000), sketched(dlrm, rows=(5000,) * 4))


def test_many_tables_of_one_size_take_no_longer_than_few() -> None:
    assert_same(table_rows(sketched(dlrm, rows=(100,) * 16), 50), sketched(dlrm, rows=(50,) * 16))


def test_one_table_gets_other_rows() -> None:
    before = sketched(dlrm, rows=(10, 20, 300, 300))
    assert_same(table_rows(before, 77, "2"), sketched(dlrm, rows=(10, 20, 77, 300)))
    assert_same(table_rows(before, 77, "tables.2"), sketched(dlrm, rows=(10, 20, 77, 300)))


def test_layers_follow_the_dimension_of_the_tables() -> None:
    assert_same(table_dim(sketched(dlrm), 24), sketched(dlrm, dim=24, bottom=(13, 32, 24)))


def test_bags_hold_other_numbers_of_ids() -> None:
    assert_same(pooling(sketched(dlrm), 7), sketched(dlrm, pooling=7))


def test_a_name_that_no_table_has_is_told_with_those_near_to_it() -> None:
    with pytest.raises(ForetraceError, match=r"no table 'tabels.2'.*tables.2"):
        table_rows(sketched(dlrm), 77, "tabels.2")


def test_a_step_without_bags_has_no_pooling() -> None:
    with pytest.raises(ForetraceError, match="looks up in no tables"):
        pooling(sketched(gpt), 7)
