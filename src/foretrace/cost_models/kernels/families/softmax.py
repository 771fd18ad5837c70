"""Softmax, log-softmax and their gradients: a warp, a block or a tile of threads per row, by row length."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    RESIDENT,
    WARP,
    WIDEST_LOAD,
    alignment,
    argument,
    ceil_div,
    dtype_code,
    int_argument,
    log,
    tensors_of,
    wave_quantization,
)  # fmt: skip
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.op import is_contiguous
from foretrace.platform.measurements.cases import Case, Draw, Shape

BLOCK = 1024
"""The most threads of a block."""
WARPS = 4
"""Warps of a block where each warp has its own rows."""
SHARED = 49152
"""Bytes of a row that fit into shared memory."""
IN_WARP, IN_REGISTERS, IN_SHARED, IN_PASSES, ACROSS = range(5)
"""Where a row is held: the registers of a warp or of a block, shared memory; nowhere, and read in each pass; or rows
are strided, and a tile of threads works across them."""
ROUND_TRIPS = (1.5, 2.0, 2.0, 1.0, 0.3)
"""Memory round trips of a wave of blocks, by where rows are held; in passes and across, per element."""


class Softmax(Family):
    """Softmax and log-softmax, forward and backward."""

    name = "softmax"
    share = 1.5
    ops = ("aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data",
           "aten::_log_softmax_backward_data")  # fmt: skip
    columns = ("op", "dtype", "out_dtype", "bytes", "rows", "row", "row_aligned", "inside", "dense", "row_bytes",
               "way", "padding", "threads", "each", "waves", "ragged", "left_over", "inside_aligned", "trips",
               "roof")  # fmt: skip

    def describe(self, op: Op, context: CallContext) -> Description:
        """Rows along the dimension, and the threads of each."""
        tensors = tensors_of(op)
        first = tensors[0]
        backward = op.name.endswith("_data")
        dims = len(first.shape)
        place = int_argument(op, 2 if backward else 1, "dim", -1) % dims if dims else 0
        row = max(1, first.shape[place]) if dims else 1
        inside = math.prod(first.shape[place + 1 :])
        numel, item, sms = first.numel, first.itemsize, context.device.sms
        rows = numel / row
        made = _made(op, first.dtype)
        padded = 1 << (row - 1).bit_length()
        way = ACROSS if inside > 1 else _way(row, item, backward, made != first.dtype)
        threads, blocks, each = _shared(way, row, item, rows) if way != ACROSS else _across(row, inside, rows / inside)
        waves = blocks * threads / (sms * RESIDENT)
        passes = (2 if backward else 3) * each if way >= IN_PASSES else 1
        moved = sum(t.nbytes for t in tensors) + numel * item
        if op.name == "aten::_softmax_backward_data":
            moved += 3 * numel * item  # gradient times output is a kernel of its own
        work = Work(flops=4 * numel, bytes=moved, round_trips=math.ceil(waves) * passes * ROUND_TRIPS[way])
        features = [
            self.op_codes[op.name], dtype_code(first.dtype), dtype_code(made), log(numel * item), log(rows),
            log(row), alignment(row), log(inside), all(is_contiguous(t) for t in tensors), log(row * item), way,
            padded / row, threads, log(each), log(waves * 64), wave_quantization(waves),
            each * threads / row, alignment(inside), log(work.round_trips), log(work.us(context.device) * 64),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A softmax over the last dimension, seldom over another."""
        name, dtype = draw.one(("_softmax", "_log_softmax")), draw.dtype()
        style = draw.weighted({"any": 12, "vocabulary": 5, "image": 1})
        shape, dim = {"any": _any, "vocabulary": _vocabulary, "image": _image}[style](draw)
        tensor = Tensor(shape, dtype)
        if draw.chance(0.5):
            # float16 in, float32 out is a kernel of its own on a GPU.
            widened = draw.kind == "cuda" and dtype == "float16" and draw.chance(0.3)
            return Case(Op(f"aten::{name}", (tensor, dim, widened), overload="default"))
        args = (tensor, tensor, dim, Constant("dtype", dtype))
        return Case(Op(f"aten::{name}_backward_data", args, overload="default"))


def _way(row: int, item: int, backward: bool, converted: bool) -> int:
    """Where PyTorch's kernel holds a row."""
    if row <= (1024 if backward or converted else 2048):
        return IN_WARP
    if row <= 9 * BLOCK and not backward and not converted:
        return IN_REGISTERS
    return IN_SHARED if row * item % WIDEST_LOAD == 0 and row * item < SHARED else IN_PASSES


def _shared(way: int, row: int, item: int, rows: float) -> tuple[int, int, int]:
    """Threads, blocks, and loads of a thread, if a warp or a block has a row to itself."""
    if way == IN_WARP:
        padded = 1 << (row - 1).bit_length()
        per_block = WARPS * max(1, WARP // padded) * (2 if padded <= 128 else 1)
        return WARP * WARPS, ceil_div(rows, per_block), max(1, padded // WARP)
    at_once = 1 if way == IN_REGISTERS else max(1, WIDEST_LOAD // max(1, item))
    threads = max(WARP, min(BLOCK, 1 << (row // at_once).bit_length() - 1))
    return threads, int(rows), ceil_div(row, threads * at_once)


def _across(row: int, inside: int, outside: float) -> tuple[int, int, int]:
    """Threads, blocks, and elements of a thread, if neighbours in memory belong to different rows."""
    width = min(inside, BLOCK)
    along = 1
    if width <= 64 and row >= 64:
        while width * along <= BLOCK and along <= row:
            along *= 2
        along //= 2
    return width * along, int(ceil_div(inside, width) * outside), ceil_div(row, along)


def _made(op: Op, dtype: str) -> str:
    """Dtype of the output: float16 inputs may have float32 outputs."""
    kind = argument(op, 3 if op.name.endswith("_data") else 2, "dtype")
    return kind.value if isinstance(kind, Constant) else "float32" if kind is True else dtype


# Cases to measure


def _any(draw: Draw) -> tuple[Shape, int]:
    classes = draw.whole(2, min(160_000, draw.most))
    rows = draw.size(1, max(1, min(65536, draw.most // classes)))
    if draw.chance(0.3):
        heads = draw.whole(1, 16)
        return (max(1, rows // heads), heads, classes), 2
    return (rows, classes), 1 if draw.chance(0.96) else 0


def _vocabulary(draw: Draw) -> tuple[Shape, int]:
    """The vocabulary of a language model, for each token of a batch."""
    classes = draw.whole(min(20_000, draw.most), min(160_000, draw.most))
    return (draw.size(1, max(1, min(32768, 2 * draw.most // classes))), classes), 1


def _image(draw: Draw) -> tuple[Shape, int]:
    """Classes of each pixel, which are strided."""
    classes, side = draw.whole(2, 64), draw.whole(8, 512)
    side = min(side, max(1, int((draw.most // classes) ** 0.5)))
    return (draw.whole(1, max(1, min(64, draw.most // (classes * side * side)))), classes, side, side), 1
