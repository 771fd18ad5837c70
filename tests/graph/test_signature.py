"""Calls that are made over and over are known again."""

from __future__ import annotations

import pytest

from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.signature import signature


def _matrix(storage: int, **others: object) -> Tensor:
    return Tensor((8, 8), "float32", "cuda:0", stride=(8, 1), storage=storage, id=storage, **others)


def test_where_a_call_was_made_and_on_which_tensors_does_not_count() -> None:
    here = Op("aten::mm", (_matrix(1), _matrix(2)), phase="forward", module="a", outputs=(_matrix(3),))
    there = Op("aten::mm", (_matrix(7), _matrix(8)), phase="backward", module="b", outputs=(_matrix(9),))
    assert signature(here) == signature(there)


@pytest.mark.parametrize(
    "other",
    [
        Op("aten::bmm", (_matrix(1), 2)),
        Op("aten::mul", (_matrix(1), 2), overload="Scalar"),
        Op("aten::mul", (_matrix(1), 2.0)),
        Op("aten::mul", (_matrix(1), [2])),
        Op("aten::mul", (_matrix(1),), {"other": 2}),
        Op("aten::mul", (_matrix(1, offset=1), 2)),
        Op("aten::mul", (_matrix(1, layout="sparse_coo"), 2)),
        Op("aten::mul", (Tensor((8, 8), "float32", "cuda:0", stride=(1, 8), storage=1), 2)),
        Op("aten::mul", (Tensor((8, 8), "float32", "cpu", stride=(8, 1), storage=1), 2)),
    ],
)
def test_what_a_time_may_depend_on_counts(other: Op) -> None:
    assert signature(Op("aten::mul", (_matrix(1), 2))) != signature(other)


def test_tensors_that_share_memory_are_told_from_those_that_do_not() -> None:
    apart, same = Op("aten::mm", (_matrix(1), _matrix(2))), Op("aten::mm", (_matrix(1), _matrix(1)))
    assert signature(apart) != signature(same)


def test_arguments_of_any_kind_can_be_part_of_it() -> None:
    op = Op("aten::odd", (None, [[_matrix(1)], {"a": [1.5]}], Constant("dtype", "float32")), {"k": {"b": ()}})
    assert hash(signature(op)) == hash(signature(op))
