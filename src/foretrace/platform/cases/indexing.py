"""Reading and writing elements and rows by index."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case, Ids
from foretrace.platform.cases.draw import Draw
from foretrace.platform.cases.lookups import spread


def draw(draw: Draw) -> Case:
    """An index, gather, scatter or put.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name.startswith("aten::")
    True
    """
    if draw.chance(0.25):
        return Case(_triangle(draw))
    op, count = draw.weighted(_KINDS)(draw)
    return Case(op, ids=spread(draw, count) if draw.chance(0.5) else Ids(count))


def _triangle(draw: Draw) -> Op:
    """Each pair of a sample's features once, as DLRM's interaction takes them; or the gradient of that."""
    side = draw.whole(2, 64)
    count = side * (side - 1) // 2
    batch = draw.size(1, max(1, min(65536, draw.most // (side * side))))
    matrices, places = Tensor((batch, side, side), draw.dtype()), Tensor((count,), "int64")
    if draw.chance(0.4):
        return Op("aten::index", (matrices, [None, places, places]), overload="Tensor")
    # The gradient is what is left of a wider one: beside the products lay the dense features.
    beside = draw.size(8, 256) if draw.chance(0.7) else 0
    values = Tensor((batch, count), matrices.dtype, stride=(count + beside, 1), offset=beside)
    args: tuple[Value, ...] = (matrices, [None, places, places], values, True, True)
    return Op("aten::_index_put_impl_", args, overload="default")


def _pairs(draw: Draw) -> tuple[Op, int]:
    """Entries of a small matrix per sample, by two lists of positions: DLRM's interaction, and its gradient."""
    side = draw.whole(4, 64)
    count = draw.whole(1, side * side)
    batch = draw.size(1, max(1, min(32768, draw.most // (side * side))))
    matrices, places = Tensor((batch, side, side), draw.dtype()), Tensor((count,), "int64")
    if draw.chance(0.5):
        return Op("aten::index", (matrices, [None, places, places]), overload="Tensor"), count
    values = Tensor((batch, count), matrices.dtype)
    args: tuple[Value, ...] = (matrices, [None, places, places], values, True, True)
    return Op("aten::_index_put_impl_", args, overload="default"), count


def _rows(draw: Draw) -> tuple[Op, int]:
    rows, width = draw.whole(16, max(16, min(1_000_000, draw.most // 16))), draw.size(1, 1024)
    width = max(1, min(width, draw.most // rows))
    count = draw.size(1, max(1, min(1_000_000, draw.most // width)))
    table, places = Tensor((rows, width), draw.dtype()), Tensor((count,), "int64")
    values = Tensor((count, width), table.dtype)
    if draw.chance(0.15):
        values = Tensor((count, width), table.dtype, stride=(2 * width, 1))
    style = draw.weighted({"index": 3, "put": 2, "accumulate": 2, "index_add_": 2})
    if style == "index":
        return Op("aten::index", (table, [places]), overload="Tensor"), count
    if style == "index_add_":
        return Op("aten::index_add_", (table, 0, places, values), overload="default"), count
    args: tuple[Value, ...] = (table, [places], values, style == "accumulate", True)
    return Op("aten::_index_put_impl_", args, overload="default"), count


def _elements(draw: Draw) -> tuple[Op, int]:
    rows = draw.size(1, max(1, min(65536, draw.most // 16)))
    width = draw.whole(2, max(2, min(160_000, draw.most // rows)))
    taken = draw.whole(1, min(width, 256))
    table = Tensor((rows, width), draw.weighted({"float32": 6, "bfloat16": 3, "int64": 1}))
    places, part = Tensor((rows, taken), "int64"), Tensor((rows, taken), table.dtype)
    name = draw.weighted({"gather": 4, "scatter_add_": 3, "scatter_": 2})
    count = rows * taken
    if name == "gather":
        return Op("aten::gather", (table, 1, places), overload="default"), count
    overload = "src" if name == "scatter_" else "default"
    return Op(f"aten::{name}", (table, 1, places, part), overload=overload), count


def _mask(draw: Draw) -> tuple[Op, int]:
    """A mask of tokens, spread out over heads and queries."""
    batch, length = draw.size(1, 128), draw.size(16, max(16, min(4096, int(draw.most**0.5) // 8)))
    mask = Tensor((batch, length), "bool")
    places: list[Value] = [Tensor((batch, 1, 1, 1), "int64"), Tensor((1, 1, 1, length), "int64")]
    return Op("aten::index", (mask, places), overload="Tensor"), length


_KINDS: dict[Callable[[Draw], tuple[Op, int]], int] = {_pairs: 4, _rows: 5, _elements: 4, _mask: 1}
