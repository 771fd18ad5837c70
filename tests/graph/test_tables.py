"""Tables of columns that create ops on demand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.graph import Op, OpTable, Tensor
from foretrace.graph.tables import distinct, percentiles


def test_an_op_comes_back_with_all_it_went_in_with() -> None:
    op = Op("aten::mm", (Tensor((2, 3), "float32", id=4),), {"alpha": 0.5}, phase="backward", module="M.0", thread=3)
    back = OpTable.of([op])[0]
    assert (back.args, back.kwargs, back.phase, back.module, back.thread) == (op.args, op.kwargs, "backward", "M.0", 3)


def test_changing_an_op_that_was_asked_for_leaves_the_table_alone() -> None:
    table = OpTable.of([Op("aten::mm", phase="forward")])
    table[0].phase = "optimizer"
    assert table[0].phase == "forward"


def test_picked_rows_still_know_their_arguments() -> None:
    table = OpTable.of([Op("a", (1,)), Op("b", (2,)), Op("c", (3,))])
    picked = table.rows(np.array([False, True, True]))
    assert [(op.name, op.args) for op in picked] == [("b", (2,)), ("c", (3,))]


def test_ops_one_after_the_other_are_those_asked_for_one_by_one() -> None:
    ops = [Op("a", (1,), phase="forward", thread=2, start_us=1.0), Op("b", (2,), parent=0, module="M")]
    table = OpTable.of(ops)
    assert repr(list(table)) == repr([table[0], table[1]]) == repr(ops)


def test_an_empty_table_has_no_rows() -> None:
    assert len(OpTable.of([])) == len(OpTable.empty()) == 0


@given(st.lists(st.integers(-9, 9)))
def test_different_numbers_are_those_of_numpy(values: list[int]) -> None:
    assert distinct(np.array(values, np.int32)).tolist() == np.unique(np.array(values, np.int32)).tolist()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.lists(st.floats(0, 100), min_size=1))
def test_percentiles_are_those_of_numpy(values: list[float], which: list[float]) -> None:
    assert percentiles(np.array(values), which) == pytest.approx(np.percentile(values, which).tolist(), abs=1e-6)
