"""Reads and writes by index: gather, scatter, index, index_put."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from foretrace.cost_models.kernels.families.lookups import id_distribution
from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    BLOCK_SORT,
    RESIDENT,
    SECTOR,
    SERIAL_ROUND_TRIPS,
    alignment,
    argument,
    bool_argument,
    ceil_div,
    dtype_code,
    hottest_row_hits,
    int_argument,
    log,
    reuse_features,
    strides_of,
    tensors_of,
    uniform_indices,
)  # fmt: skip
from foretrace.cost_models.kernels.features import REUSE_COLUMNS as REUSE
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.graph.op import is_contiguous
from foretrace.graph.operators import MASK_DTYPES
from foretrace.platform.measurements.cases import Case, Draw, Ids

PUTS = ("aten::_index_put_impl_", "aten::index_put_", "aten::index_put", "aten::_unsafe_index_put")
READS = ("aten::index", "aten::_unsafe_index")
ROWS = ("aten::index_add_", "aten::index_add", "aten::index_copy_", "aten::index_copy", "aten::index_fill_")
ELEMENTS = ("aten::gather", "aten::scatter_add_", "aten::scatter_add", "aten::scatter_", "aten::scatter",
            "aten::gather_backward", "aten::scatter_reduce_", "aten::scatter_reduce", "aten::take_along_dim",
            "aten::masked_scatter", "aten::take")  # fmt: skip
INTEGERS = ("int64", "int32", "bool", "uint8")


class Indexing(Family):
    """Elements or rows selected by a tensor of indices or a mask."""

    name = "indexing"
    share = 2
    ops = (*READS, *ELEMENTS, *ROWS, *PUTS)
    columns = ("op", "dtype", "picked", "table", "ids", "row", "index_tensors", "accumulate", "row_aligned",
               "first_dim", "dims", "truth", "picked_bytes", "dim", "sorted_in", "digits", "dense", "step", "inside",
               "fetched", "roof", "waves", "from_memory", *REUSE)  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Calls whose table and indices are known."""
        return len(tensors_of(op)) > 1

    def describe(self, op: Op, context: CallContext) -> Description:
        """How much is selected, the length of its rows, and how often indices repeat."""
        tensors = tensors_of(op)
        given = op.args[1] if len(op.args) > 1 and isinstance(op.args[1], (list, tuple)) else ()
        table, listed = _merged(tensors[0], given)
        tensors = [table, *tensors[1:]]
        ids = _ids(op, tensors, listed)
        named = max((t.numel for t in ids), default=1)
        picked = _picked(op, tensors, ids, listed, named)
        leading = next((i for i, t in enumerate(listed) if isinstance(t, Tensor)), 0)
        dim = leading if listed else int_argument(op, 1, "dim", 0) % max(1, len(table.shape))
        accumulate = op.name in PUTS and bool_argument(op, 3, "accumulate")
        rows = _places(table, listed, dim)
        found = context.indices or uniform_indices(rows, named)
        item = table.itemsize
        inside = math.prod(table.shape[dim + 1 :])
        row = picked / max(1, named)
        way = (2 if named <= BLOCK_SORT else 3) if accumulate else 1 if "add" in op.name else 0
        strides = strides_of(table)
        step = strides[dim] if dim < len(strides) else 1
        fetched = min(SECTOR, max(item, row * item)) / SECTOR
        sort = 16 * named * ceil_div(log(rows), 8) if way == 3 else 0
        # A row that is indexed many times is accumulated by one warp.
        chain = SERIAL_ROUND_TRIPS * hottest_row_hits(found) if accumulate else 0.0
        work = Work(bytes=(2 + bool(way)) * picked * item + sum(t.nbytes for t in ids) + sort, round_trips=chain)
        features = [
            self.op_codes[op.name], dtype_code(table.dtype), log(picked), log(table.numel), log(named), log(row),
            len(ids), accumulate, alignment(int(row) * item), leading, len(table.shape),
            any(t.dtype == "bool" for t in ids), log(picked * item), dim, way, ceil_div(log(rows), 8),
            is_contiguous(table), log(step), log(inside), fetched, log(64 * work.us(context.device)),
            log(64 * picked / (context.device.sms * RESIDENT)), log(found.unique * max(SECTOR, row * item)),
            *reuse_features(found),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A random index, gather, scatter or put."""
        if draw.chance(0.25):
            return Case(_triangle(draw))
        op, count = draw.weighted(_KINDS)(draw)
        return Case(op, ids=id_distribution(draw, count) if draw.chance(0.5) else Ids(count))


def _merged(table: Tensor, listed: Sequence[object]) -> tuple[Tensor, Sequence[object]]:
    """The table with the dimensions merged that one mask selects from, and the mask as one of a single dimension."""
    if not any(isinstance(one, Tensor) and one.dtype in MASK_DTYPES and len(one.shape) > 1 for one in listed):
        return table, listed
    shape, strides, kept = list(table.shape), list(strides_of(table)), []
    for place, one in enumerate(listed):
        if isinstance(one, Tensor) and one.dtype in MASK_DTYPES and one.shape and len(shape) >= place + len(one.shape):
            end = place + len(one.shape)
            shape[place:end], strides[place:end] = [math.prod(shape[place:end])], strides[end - 1 : end]
            one = Tensor((one.numel,), one.dtype)
        kept.append(one)
    return Tensor(tuple(shape), table.dtype, stride=tuple(strides)), kept


def _ids(op: Op, tensors: list[Tensor], listed: Sequence[object]) -> list[Tensor]:
    """The index tensors."""
    if listed:
        return [t for t in listed if isinstance(t, Tensor)]
    named = argument(op, 2, "index")
    if isinstance(named, Tensor):
        return [named]
    return [t for t in tensors[1:] if t.dtype in INTEGERS][:1]


def _picked(op: Op, tensors: list[Tensor], ids: list[Tensor], listed: Sequence[object], named: int) -> int:
    """Number of elements read or written by index."""
    if op.name in READS:
        shape = tensors[0].shape
        kept = [size for d, size in enumerate(shape) if d >= len(listed) or not isinstance(listed[d], Tensor)]
        return named * math.prod(kept)
    if op.name in PUTS or op.name in ROWS:
        values = [t for t in tensors[1:] if not any(t is one for one in ids)]
        return max((t.numel for t in values), default=named)
    return named


def _places(table: Tensor, listed: Sequence[object], dim: int) -> int:
    """Number of rows or elements that can be indexed."""
    if listed:
        return math.prod(size for size, one in zip(table.shape, listed) if isinstance(one, Tensor))
    return table.shape[dim] if dim < len(table.shape) else 1


# Cases to measure


def _triangle(draw: Draw) -> Op:
    """DLRM's interaction: each pair of a sample's features once; or its gradient."""
    side = draw.whole(2, 64)
    count = side * (side - 1) // 2
    batch = draw.size(1, max(1, min(65536, draw.most // (side * side))))
    matrices, places = Tensor((batch, side, side), draw.dtype()), Tensor((count,), "int64")
    if draw.chance(0.4):
        return Op("aten::index", (matrices, [None, places, places]), overload="Tensor")
    # The gradient is a slice of a wider one, which also has the dense features.
    dense = draw.size(8, 256) if draw.chance(0.7) else 0
    values = Tensor((batch, count), matrices.dtype, stride=(count + dense, 1), offset=dense)
    args: tuple[Value, ...] = (matrices, [None, places, places], values, True, True)
    return Op("aten::_index_put_impl_", args, overload="default")


def _pairs(draw: Draw) -> tuple[Op, int]:
    """Entries of a small matrix per sample by two lists of positions, and the gradient."""
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
    rows = draw.size(1, max(1, min(262_144, draw.most // 16)))
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
    """A mask of tokens, broadcast over heads and queries."""
    batch, length = draw.size(1, 128), draw.size(16, max(16, min(4096, int(draw.most**0.5) // 8)))
    mask = Tensor((batch, length), "bool")
    places: list[Value] = [Tensor((batch, 1, 1, 1), "int64"), Tensor((1, 1, 1, length), "int64")]
    return Op("aten::index", (mask, places), overload="Tensor"), length


_KINDS: dict[Callable[[Draw], tuple[Op, int]], int] = {_pairs: 4, _rows: 5, _elements: 4, _mask: 1}
