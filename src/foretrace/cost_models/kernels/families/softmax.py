"""Softmax, log-softmax and their gradients: a warp, a block or a tile of threads per row, by how long rows are."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    dtype_code,
    integer,
    is_dense,
    log,
    per,
    ragged,
    tensors_of,
)  # fmt: skip
from foretrace.graph import Constant, Op

WARP, BLOCK, RESIDENT = 32, 1024, 2048
WARPS = 4
"""Warps in a block where each has rows to itself."""
LOAD = 16
"""Bytes that a thread loads at once."""
SHARED = 49152
"""Bytes of a row that a block keeps beside it."""
IN_WARP, IN_REGISTERS, IN_SHARED, IN_PASSES, ACROSS = range(5)
"""Where a row is held: a warp's registers, a block's, its shared memory; read again for each pass; or its elements
lie apart."""
TRIPS = (1.5, 2.0, 2.0, 1.0, 0.3)
"""Trips to memory that a wave of blocks waits for, by where rows are held; in passes and across, for each element."""


class Softmax(Family):
    """Each row normalised by itself."""

    name = "softmax"
    ops = ("aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data",
           "aten::_log_softmax_backward_data")  # fmt: skip
    columns = ("op", "dtype", "out_dtype", "bytes", "rows", "row", "row_aligned", "inside", "dense", "row_bytes",
               "way", "padding", "threads", "each", "waves", "ragged", "left_over", "inside_aligned", "trips",
               "roof")  # fmt: skip

    def describe(self, op: Op, facts: Facts) -> Described:
        """Rows along the dimension, and the threads that share one."""
        tensors = tensors_of(op)
        first = tensors[0]
        backward = op.name.endswith("_data")
        dims = len(first.shape)
        place = integer(op, 2 if backward else 1, "dim", -1) % dims if dims else 0
        row = max(1, first.shape[place]) if dims else 1
        inside = math.prod(first.shape[place + 1 :])
        numel, item, sms = first.numel, first.itemsize, facts.device.sms
        rows = numel / row
        made = _made(op, first.dtype)
        padded = 1 << (row - 1).bit_length()
        way = ACROSS if inside > 1 else _way(row, item, backward, made != first.dtype)
        threads, blocks, each = _shared(way, row, item, rows) if way != ACROSS else _across(row, inside, rows / inside)
        waves = blocks * threads / (sms * RESIDENT)
        passes = (2 if backward else 3) * each if way >= IN_PASSES else 1
        moved = sum(t.nbytes for t in tensors) + numel * item
        if op.name == "aten::_softmax_backward_data":
            moved += 3 * numel * item  # gradient times result is a kernel of its own
        work = Work(flops=4 * numel, bytes=moved, trips=math.ceil(waves) * passes * TRIPS[way])
        features = [
            self.ops.index(op.name), dtype_code(first.dtype), dtype_code(made), log(numel * item), log(rows),
            log(row), alignment(row), log(inside), all(is_dense(t) for t in tensors), log(row * item), way,
            padded / row, threads, log(each), log(waves * 64), ragged(waves), each * threads / row, alignment(inside),
            log(work.trips), log(work.us(facts.device) * 64),
        ]  # fmt: skip
        return Described(features, work)


def _way(row: int, item: int, backward: bool, converted: bool) -> int:
    """Where PyTorch holds a row."""
    if row <= (1024 if backward or converted else 2048):
        return IN_WARP
    if row <= 9 * BLOCK and not backward and not converted:
        return IN_REGISTERS
    return IN_SHARED if row * item % LOAD == 0 and row * item < SHARED else IN_PASSES


def _shared(way: int, row: int, item: int, rows: float) -> tuple[int, int, int]:
    """Threads, blocks, and loads of a thread, where a warp or a block has a row to itself."""
    if way == IN_WARP:
        padded = 1 << (row - 1).bit_length()
        together = WARPS * max(1, WARP // padded) * (2 if padded <= 128 else 1)
        return WARP * WARPS, per(rows, together), max(1, padded // WARP)
    at_once = 1 if way == IN_REGISTERS else max(1, LOAD // max(1, item))
    threads = max(WARP, min(BLOCK, 1 << (row // at_once).bit_length() - 1))
    return threads, int(rows), per(row, threads * at_once)


def _across(row: int, inside: int, outside: float) -> tuple[int, int, int]:
    """Threads, blocks, and elements of a thread, where neighbours in memory belong to different rows."""
    beside = min(inside, BLOCK)
    along = 1
    if beside <= 64 and row >= 64:
        while beside * along <= BLOCK and along <= row:
            along *= 2
        along //= 2
    return beside * along, int(per(inside, beside) * outside), per(row, along)


def _made(op: Op, dtype: str) -> str:
    """Dtype of the result: halves may be asked for as floats."""
    kind = argument(op, 3 if op.name.endswith("_data") else 2, "dtype")
    return kind.value if isinstance(kind, Constant) else "float32" if kind is True else dtype
