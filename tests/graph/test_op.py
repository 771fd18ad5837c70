"""Tensors and signatures of ops."""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from typing import Any

import pytest

from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.op import ITEMSIZE, signature


def test_tensors_are_found_in_lists_and_keywords_in_order() -> None:
    a, b, c = (Tensor((n,), "int8", id=n) for n in (1, 2, 3))
    op = Op("aten::cat", ([a, b], 0, Constant("dtype", "int8")), {"out": c}, outputs=([c],))
    assert op.tensors == [a, b, c]
    assert op.produced == [c]


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("int64", 8), ("bool", 1)])
def test_bytes_follow_from_shape_and_dtype(dtype: str, size: int) -> None:
    assert Tensor((3, 5), dtype).nbytes == 15 * size


def test_every_dtype_of_torch_is_known() -> None:
    torch = pytest.importorskip("torch")
    kinds = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    plain = {k for k in kinds if not str(k).startswith(("torch.bits", "torch.int", "torch.uint", "torch.q"))}
    wrong = {str(k): k.itemsize for k in plain if ITEMSIZE.get(str(k).removeprefix("torch.")) != k.itemsize}
    assert not wrong


def test_a_copy_has_all_fields_and_is_another_op() -> None:
    given = {field.name: field.name for field in fields(Op)}
    op = Op(**given)  # type: ignore[arg-type]
    twin = copy(op)
    assert twin == op and twin is not op


def _matrix(storage: int, **others: Any) -> Tensor:
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


def test_tensors_that_share_memory_have_another_signature() -> None:
    apart, same = Op("aten::mm", (_matrix(1), _matrix(2))), Op("aten::mm", (_matrix(1), _matrix(1)))
    assert signature(apart) != signature(same)


def test_arguments_of_any_kind_can_be_part_of_it() -> None:
    op = Op("aten::odd", (None, [[_matrix(1)], {"a": [1.5]}], Constant("dtype", "float32")), {"k": {"b": ()}})
    assert hash(signature(op)) == hash(signature(op))
