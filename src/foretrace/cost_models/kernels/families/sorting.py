"""Sorting, top-k, distinct values, running sums and triangles."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import COLUMNS as REUSE
from foretrace.cost_models.kernels.features import (
    argument,
    dtype_code,
    evenly,
    integer,
    is_dense,
    log,
    per,
    reuse,
    tensors_of,
)
from foretrace.graph import Op

DIM = {"aten::sort": 1, "aten::topk": 2, "aten::cumsum": 1, "aten::cumprod": 1, "aten::argsort": 1, "aten::kthvalue": 2,
       "aten::cummax": 1, "aten::cummin": 1, "aten::logcumsumexp": 1, "aten::cumsum_": 1, "aten::msort": 9}  # fmt: skip
"""Calls that put each row in order, and where each is told the dimension."""
WHOLE = ("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::tril", "aten::triu", "aten::nonzero",
         "aten::bincount", "aten::histc", "aten::searchsorted", "aten::bucketize", "aten::masked_select",
         "aten::multinomial", "aten::tril_", "aten::triu_")  # fmt: skip
ONE_TILE = 5888
"""Elements up to which one block sorts them."""
WIDE = 4096
"""Elements of a row up to which a block sorts it alone."""
SCANNED = 256
"""Elements of a row that a block sums up at once."""
DIGIT = 8
"""Bits that a pass of a radix sort takes."""


class Sorting(Family):
    """Calls that put things in order."""

    name = "sorting"
    ops = (*DIM, *WHOLE)
    columns = ("op", "dtype", "numel", "bytes", "rows", "row", "inside", "k", "options", "stable", "passes", "padded",
               "waves", "dense", "roof", "way", *REUSE)  # fmt: skip

    def describe(self, op: Op, facts: Facts) -> Described:
        """Rows, their length, how many are wanted, and the passes of a radix sort."""
        first = tensors_of(op)[0]
        numel, item = first.numel, first.itemsize
        row, inside, k = numel, 1, 0
        if op.name in DIM and first.shape:
            dims = len(first.shape)
            where = integer(op, DIM[op.name], "dim", -1) % dims
            row, inside = first.shape[where], math.prod(first.shape[where + 1 :])
            k = integer(op, 1, "k", 0) if op.name in ("aten::topk", "aten::kthvalue") else 0
        rows = numel / max(1, row)
        sorts = "sort" in op.name or "unique" in op.name
        way = 0 if numel <= ONE_TILE else 1 if row <= WIDE else 2
        passes = per(8 * item, DIGIT) + (rows > 1) * per(log(rows), DIGIT) if sorts and way == 2 else 1
        moved = 2 * numel * item + (numel * (item + 8) * 2 * passes if sorts else 0)
        chain = _scan(rows, row, inside, facts.device.sms) if "cum" in op.name else 2.0 * passes
        work = Work(bytes=moved, trips=chain)
        found = facts.indices or evenly(1 << 30, numel)
        padded = 1 << max(0, row - 1).bit_length()
        features = [
            PLACE[op.name], dtype_code(first.dtype), log(numel), log(numel * item), log(rows), log(row), log(inside),
            log(k), sum(1 << i for i, a in enumerate(op.args) if a is True), argument(op, -1, "stable") is True,
            passes, padded / max(1, row), log(64 * rows / facts.device.sms), is_dense(first),
            log(64 * work.us(facts.device)), way, *reuse(found),
        ]  # fmt: skip
        return Described(features, work)


PLACE = {name: place for place, name in enumerate(Sorting.ops)}


def _scan(rows: float, row: int, inside: int, sms: int) -> float:
    """Trips of a running sum: a thread has a column to itself, a block several rows; a single row is cut up."""
    if inside > 1:
        return row / 4 * per(rows, sms * 2048)
    return row / SCANNED * per(rows, sms * 16) if rows > 1 else 0.0
