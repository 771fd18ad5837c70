"""Reading and writing by index: gather, scatter, index, index_put."""

from __future__ import annotations

import math
from collections.abc import Sequence

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import COLUMNS as REUSE
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    dtype_code,
    evenly,
    flag,
    hottest,
    integer,
    is_dense,
    log,
    per,
    reuse,
    strides_of,
    tensors_of,
)  # fmt: skip
from foretrace.graph import Op, Tensor

PUTS = ("aten::_index_put_impl_", "aten::index_put_", "aten::index_put", "aten::_unsafe_index_put")
READS = ("aten::index", "aten::_unsafe_index")
ROWS = ("aten::index_add_", "aten::index_add", "aten::index_copy_", "aten::index_copy", "aten::index_fill_")
ELEMENTS = ("aten::gather", "aten::scatter_add_", "aten::scatter_add", "aten::scatter_", "aten::scatter",
            "aten::gather_backward", "aten::scatter_reduce_", "aten::scatter_reduce", "aten::take_along_dim",
            "aten::masked_scatter", "aten::take")  # fmt: skip
INTEGERS = ("int64", "int32", "bool", "uint8")
SECTOR = 32
SERIAL = 0.4
"""Trips to memory for each of the elements that are added up one after the other."""
ONE_TILE = 5888
"""Places up to which one block sorts them."""


class Indexing(Family):
    """Elements or rows at places that a tensor of integers names."""

    name = "indexing"
    ops = (*READS, *ELEMENTS, *ROWS, *PUTS)
    columns = ("op", "dtype", "picked", "table", "ids", "row", "index_tensors", "accumulate", "row_aligned",
               "first_dim", "dims", "truth", "picked_bytes", "dim", "sorted_in", "digits", "dense", "step", "inside",
               "fetched", "roof", "waves", "from_memory", *REUSE)  # fmt: skip

    def takes(self, op: Op) -> bool:
        """Calls whose tensors are known."""
        return len(tensors_of(op)) > 1

    def describe(self, op: Op, facts: Facts) -> Described:
        """How much is picked, how long its rows are, how often places repeat."""
        tensors = tensors_of(op)
        table = tensors[0]
        listed = op.args[1] if len(op.args) > 1 and isinstance(op.args[1], (list, tuple)) else ()
        ids = _ids(op, tensors, listed)
        named = max((t.numel for t in ids), default=1)
        picked = _picked(op, tensors, ids, listed, named)
        leading = next((i for i, t in enumerate(listed) if isinstance(t, Tensor)), 0)
        dim = leading if listed else integer(op, 1, "dim", 0) % max(1, len(table.shape))
        accumulate = op.name in PUTS and flag(op, 3, "accumulate")
        rows = _places(table, listed, dim)
        found = facts.indices or evenly(rows, named)
        item = table.itemsize
        inside = math.prod(table.shape[dim + 1 :])
        row = picked / max(1, named)
        way = (2 if named <= ONE_TILE else 3) if accumulate else 1 if "add" in op.name else 0
        strides = strides_of(table)
        step = strides[dim] if dim < len(strides) else 1
        fetched = min(SECTOR, max(item, row * item)) / SECTOR
        sort = 16 * named * per(log(rows), 8) if way == 3 else 0
        # A place that is named many times is added up by one warp alone.
        chain = SERIAL * hottest(found) if accumulate else 0.0
        work = Work(bytes=(2 + bool(way)) * picked * item + sum(t.nbytes for t in ids) + sort, trips=chain)
        features = [
            PLACE[op.name], dtype_code(table.dtype), log(picked), log(table.numel), log(named), log(row), len(ids),
            accumulate, alignment(int(row) * item), leading, len(table.shape), any(t.dtype == "bool" for t in ids),
            log(picked * item), dim, way, per(log(rows), 8), is_dense(table), log(step), log(inside), fetched,
            log(64 * work.us(facts.device)), log(64 * picked / (facts.device.sms * 2048)),
            log(found.unique * max(SECTOR, row * item)), *reuse(found),
        ]  # fmt: skip
        return Described(features, work)


PLACE = {name: place for place, name in enumerate(Indexing.ops)}


def _ids(op: Op, tensors: list[Tensor], listed: Sequence[object]) -> list[Tensor]:
    """The tensors that name places."""
    if listed:
        return [t for t in listed if isinstance(t, Tensor)]
    named = argument(op, 2, "index")
    if isinstance(named, Tensor):
        return [named]
    return [t for t in tensors[1:] if t.dtype in INTEGERS][:1]


def _picked(op: Op, tensors: list[Tensor], ids: list[Tensor], listed: Sequence[object], named: int) -> int:
    """Elements that are read or written by index."""
    if op.name in READS:
        shape = tensors[0].shape
        kept = [size for d, size in enumerate(shape) if d >= len(listed) or not isinstance(listed[d], Tensor)]
        return named * math.prod(kept)
    if op.name in PUTS or op.name in ROWS:
        values = [t for t in tensors[1:] if not any(t is one for one in ids)]
        return max((t.numel for t in values), default=named)
    return named


def _places(table: Tensor, listed: Sequence[object], dim: int) -> int:
    """Places that can be named."""
    if listed:
        return math.prod(size for size, one in zip(table.shape, listed) if isinstance(one, Tensor))
    return table.shape[dim] if dim < len(table.shape) else 1
