"""An op finds its tensors, and knows how large they are."""

from __future__ import annotations

from copy import copy
from dataclasses import fields

import pytest

from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.tensor import ITEMSIZE


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
