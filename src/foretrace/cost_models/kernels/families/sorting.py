"""Sort, top-k, unique, scans, histograms and triangles."""

from __future__ import annotations

import math
from collections.abc import Callable

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    BLOCK_SORT,
    RESIDENT,
    argument,
    ceil_div,
    dtype_code,
    int_argument,
    log,
    reuse_features,
    tensors_of,
    uniform_indices,
)
from foretrace.cost_models.kernels.features import REUSE_COLUMNS as REUSE
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.op import is_contiguous
from foretrace.platform.measurements.cases import Case, Draw

DIM = {"aten::sort": 1, "aten::topk": 2, "aten::cumsum": 1, "aten::cumprod": 1, "aten::argsort": 1, "aten::kthvalue": 2,
       "aten::cummax": 1, "aten::cummin": 1, "aten::logcumsumexp": 1, "aten::cumsum_": 1, "aten::msort": 9}  # fmt: skip
"""Calls along a dimension, and the position of each one's ``dim``."""
WHOLE = ("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::tril", "aten::triu", "aten::nonzero",
         "aten::bincount", "aten::histc", "aten::searchsorted", "aten::bucketize", "aten::masked_select",
         "aten::multinomial", "aten::tril_", "aten::triu_")  # fmt: skip
ROW_SORT = 4096
"""Elements of a row up to which a block sorts it."""
SCANNED = 256
"""Elements of a row that a block scans at once."""
DIGIT = 8
"""Bits of a radix sort's pass."""


class Sorting(Family):
    """Sorting, ranking, counting and scanning."""

    name = "sorting"
    share = 1.5
    ops = (*DIM, *WHOLE)
    columns = ("op", "dtype", "numel", "bytes", "rows", "row", "inside", "k", "options", "stable", "passes", "padded",
               "waves", "dense", "roof", "way", *REUSE)  # fmt: skip

    def describe(self, op: Op, context: CallContext) -> Description:
        """Rows, their length, k, and the passes of a radix sort."""
        first = tensors_of(op)[0]
        numel, item = first.numel, first.itemsize
        row, inside, k = numel, 1, 0
        if op.name in DIM and first.shape:
            dims = len(first.shape)
            where = int_argument(op, DIM[op.name], "dim", -1) % dims
            row, inside = first.shape[where], math.prod(first.shape[where + 1 :])
            k = int_argument(op, 1, "k", 0) if op.name in ("aten::topk", "aten::kthvalue") else 0
        rows = numel / max(1, row)
        sorts = "sort" in op.name or "unique" in op.name
        way = 0 if numel <= BLOCK_SORT else 1 if row <= ROW_SORT else 2
        passes = ceil_div(8 * item, DIGIT) + (rows > 1) * ceil_div(log(rows), DIGIT) if sorts and way == 2 else 1
        moved = 2 * numel * item + (numel * (item + 8) * 2 * passes if sorts else 0)
        chain = _scan(rows, row, inside, context.device.sms) if "cum" in op.name else 2.0 * passes
        work = Work(bytes=moved, round_trips=chain)
        found = context.indices or uniform_indices(1 << 30, numel)
        padded = 1 << max(0, row - 1).bit_length()
        features = [
            self.op_codes[op.name], dtype_code(first.dtype), log(numel), log(numel * item), log(rows), log(row),
            log(inside), log(k), sum(1 << i for i, a in enumerate(op.args) if a is True),
            argument(op, -1, "stable") is True, passes, padded / max(1, row), log(64 * rows / context.device.sms),
            is_contiguous(first), log(64 * work.us(context.device)), way, *reuse_features(found),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A random call that sorts, ranks, counts or accumulates."""
        return Case(draw.weighted(_KINDS)(draw))


def _scan(rows: float, row: int, inside: int, sms: int) -> float:
    """Memory round trips of a scan: a thread has a column, a block several rows; a single row is split."""
    if inside > 1:
        return row / 4 * ceil_div(rows, sms * RESIDENT)
    return row / SCANNED * ceil_div(rows, sms * 16) if rows > 1 else 0.0


# Cases to measure


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
    """A histogram, as of the tokens of each expert."""
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
