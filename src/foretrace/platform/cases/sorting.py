"""Sort, top-k, running sums, distinct values, triangles."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw


def draw(draw: Draw) -> Case:
    """A call that orders, ranks or accumulates along a dimension.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name.startswith("aten::")
    True
    """
    return Case(draw.weighted(_KINDS)(draw))


def _keys(draw: Draw) -> Tensor:
    dtype = draw.weighted({"float32": 4, "int64": 4, "bfloat16": 2, "int32": 1})
    high = min(draw.most, 2**25)
    return Tensor(draw.shape(1, high=high) if draw.chance(0.6) else draw.shape(2, high=high), dtype)


def _sort(draw: Draw) -> Op:
    keys = _keys(draw)
    return Op("aten::sort", (keys, -1, draw.chance(0.3)), overload="default")


def _top(draw: Draw) -> Op:
    keys = _keys(draw)
    count = draw.whole(1, min(256, keys.shape[-1]))
    return Op("aten::topk", (keys, count, -1, True, True), overload="default")


def _running_sum(draw: Draw) -> Op:
    keys = _keys(draw)
    return Op("aten::cumsum", (keys, draw.one((0, -1))), overload="default")


def _distinct(draw: Draw) -> Op:
    keys = Tensor(draw.shape(1, high=min(draw.most, 2**23)), "int64")
    return Op("aten::_unique2", (keys, True, draw.chance(0.5), draw.chance(0.5)), overload="default")


def _positions(draw: Draw) -> Op:
    return Op("aten::nonzero", (Tensor(draw.shape(1, high=min(draw.most, 2**25)), "bool"),), overload="default")


def _triangle(draw: Draw) -> Op:
    side = draw.size(8, max(8, min(8192, int(draw.most**0.5))))
    return Op(f"aten::{draw.one(('tril', 'triu'))}", (Tensor((side, side), draw.dtype()),), overload="default")


def _pairs(draw: Draw) -> Op:
    side = draw.whole(2, 256)
    return Op("aten::tril_indices", (side, side, -1), {"device": Constant("device", "")}, overload="default")


def _counts(draw: Draw) -> Op:
    """How many of each: what falls to each expert."""
    keys = draw.shape(1, high=min(draw.most, 2**23))
    if draw.chance(0.5):
        return Op("aten::bincount", (Tensor(keys, "int64"),), overload="default")
    return Op("aten::histc", (Tensor(keys, "float32"), draw.whole(2, 256), 0, 256), overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {
    _sort: 6,
    _top: 4,
    _running_sum: 4,
    _distinct: 3,
    _positions: 1,
    _triangle: 2,
    _pairs: 1,
    _counts: 1,
}
