"""Layer, batch, group and RMS norm, forward and backward: blocks per row or channel, and the work of each."""

from __future__ import annotations

import math
from collections.abc import Callable

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    RESIDENT,
    WARP,
    alignment,
    argument,
    bitmask,
    ceil_div,
    channels_last,
    dtype_code,
    int_argument,
    ints_in,
    log,
    tensors_of,
    wave_quantization,
)  # fmt: skip
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.graph.op import is_contiguous
from foretrace.platform.measurements.cases import Case, Draw, strides

BY_ROW = ("aten::native_layer_norm", "aten::_fused_rms_norm", "aten::native_layer_norm_backward",
          "aten::_fused_rms_norm_backward")  # fmt: skip
BY_GROUP = ("aten::native_group_norm", "aten::native_group_norm_backward")
BY_CHANNEL = ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::native_batch_norm_backward",
              "aten::cudnn_batch_norm_backward", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update",
              "aten::batch_norm_backward", "aten::miopen_batch_norm", "aten::miopen_batch_norm_backward",
              "aten::_native_batch_norm_legit_no_training", "aten::_native_batch_norm_legit_functional")  # fmt: skip
ROW_THREADS, BLOCK = 128, 512
"""Threads of PyTorch's kernels for rows, and the most of a block for groups and batches."""
RESIDENT_BLOCKS = 32
"""Resident blocks of an SM."""
ROW_EACH, COLUMN_ROWS = 1024, 256
"""Elements of a row, and rows of a column, that a block processes at once."""
PER_THREAD, MAX_BLOCKS = 16, 128
"""Elements of a thread, and blocks that share a channel, of channels-last tensors."""
MIN_SHARED_BLOCKS = 8
"""Blocks below which a reduction is not shared."""
TALL_ROWS = 64 * 1024
"""Rows from which on the gradients of few weights take a second kernel."""


class Norms(Family):
    """Layer, batch, group and RMS norms."""

    name = "norms"
    share = 4
    ops = (*BY_ROW, *BY_GROUP, *BY_CHANNEL)
    columns = ("op", "dtype", "weight_dtype", "weights", "bytes", "groups", "length", "inside", "length_aligned",
               "inside_aligned", "channels_last", "order", "other_order", "batch", "channels", "mask", "training",
               "waves", "ragged", "row_waves", "row_ragged", "each", "length_bytes", "column_blocks", "column_depth",
               "column_ragged", "tall", "last_blocks", "last_depth", "total", "filled", "trips", "roof")  # fmt: skip

    def describe(self, op: Op, context: CallContext) -> Description:
        """Independent groups, elements in each, and the blocks that work on them."""
        tensors = tensors_of(op)
        source = tensors[0]
        backward = "backward" in op.name
        other = tensors[1] if backward and len(tensors) > 1 else source
        sms = context.device.sms
        numel, item = source.numel, source.itemsize
        groups, inside = _groups(op, source, backward)
        length = numel / max(1, groups)
        weights = [t for t in tensors if len(t.shape) == 1 and t.numel > 1]
        mask = next((a for a in reversed(op.args) if isinstance(a, (list, tuple))), ())
        channels = source.shape[1] if len(source.shape) > 1 else 1
        last = channels_last(source)
        waves = groups / sms
        row_waves = groups * ROW_THREADS / (sms * RESIDENT)
        columns = ceil_div(length, WARP) / (2 * sms) if op.name in BY_ROW else 0.0
        blocks_last, deep = _channels_last_blocks(channels, numel // max(1, channels), backward) if last else (0, 0.0)
        passes = sum(t.nbytes for t in tensors if t.numel == numel) + numel * item
        if op.name in BY_ROW:
            # Rows that are not contiguous are copied first.
            passes += sum(2 * t.nbytes for t in tensors if t.numel == numel and not is_contiguous(t))
        tall = groups > TALL_ROWS and columns < 1 / 4
        if op.name in BY_ROW:
            deep = groups / (COLUMN_ROWS * (MAX_BLOCKS if tall else 1)) if backward else 0.0
            chain = math.ceil(row_waves) * (3 + length / ROW_EACH) + deep
        elif last:
            chain = 8 + deep / 4
        else:
            planes = op.name == "aten::native_group_norm_backward"
            blocks, summed = (numel / max(1, inside), inside) if planes else (groups, length)
            threads = BLOCK if summed >= BLOCK else WARP
            resident = min(RESIDENT_BLOCKS, RESIDENT // threads)
            chain = math.ceil(blocks / (resident * sms)) * (2 if backward else 1) * (1 + summed / (2 * threads)) + 2
        work = Work(flops=8 * numel, bytes=passes, round_trips=chain)
        features = [
            self.op_codes[op.name], dtype_code(source.dtype), dtype_code(weights[0].dtype) if weights else -1,
            len(weights), log(numel * item), log(groups), log(length), log(inside), alignment(int(length)),
            alignment(int(inside)), last, _order(source), _order(other),
            log(source.shape[0] if source.shape else 1), log(channels), bitmask(mask) if backward else -1,
            any(a is True for a in op.args), log(waves), wave_quantization(waves), log(row_waves),
            wave_quantization(row_waves), log(length / BLOCK), log(length * item), log(columns * 2 * sms),
            log(groups / WARP), wave_quantization(columns), tall, log(blocks_last), log(deep), log(numel),
            ceil_div(inside, BLOCK) * BLOCK / max(1, inside), log(chain), log(64 * work.us(context.device)),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A random norm, or its gradient."""
        return Case(draw.weighted(_KINDS)(draw))


def _groups(op: Op, source: Tensor, backward: bool) -> tuple[float, float]:
    """Groups with a mean each, and contiguous elements within one."""
    plane = math.prod(source.shape[2:])
    if op.name in BY_ROW:
        shape = ints_in(argument(op, 2 if backward else 1, "normalized_shape"))
        length = math.prod(shape or source.shape[-1:])
        return source.numel / max(1, length), length
    if op.name in BY_GROUP:
        return (source.shape[0] if source.shape else 1) * int_argument(op, 8 if backward else 6, "group", 1), plane
    return source.shape[1] if len(source.shape) > 1 else source.numel, plane


def _channels_last_blocks(channels: int, samples: int, backward: bool) -> tuple[int, float]:
    """Blocks, and elements that a thread reduces, as PyTorch partitions channels-last tensors."""
    width = _power_below(min(channels, WARP))
    height = min(_power_below(ceil_div(samples, PER_THREAD)), BLOCK // width)
    if width * height != BLOCK:
        width = min(_power_below(channels), BLOCK // height)
    shared = max(1, min(ceil_div(samples, height * PER_THREAD), MAX_BLOCKS))
    if backward and shared < MIN_SHARED_BLOCKS:
        shared = 1
    return ceil_div(channels, width) * shared, samples / (height * shared)


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def _order(tensor: Tensor) -> int:
    """2 for a contiguous tensor; 1 where at least its rows are, so that a copy of it is fast; 0 for others.

    >>> [_order(Tensor((4, 8, 16), "float32", stride=s)) for s in ((128, 16, 1), (16, 64, 1), (128, 1, 8))]
    [2, 1, 0]
    """
    rows = tensor.stride is None or not tensor.stride or tensor.stride[-1] == 1
    return is_contiguous(tensor) + rows


# Cases to measure

EPSILON = 1e-5
ALL: list[Value] = [True, True, True]
"""Mask of a backward that computes the gradients of input, weight and bias."""


def _rows(draw: Draw) -> tuple[tuple[int, ...], int]:
    width = draw.size(16, min(16384, draw.most))
    rows = draw.size(1, max(1, min(131072, draw.most // width)))
    if draw.chance(0.7):
        batch = draw.whole(1, rows)
        return (batch, max(1, rows // batch), width), width
    return (rows, width), width


def _transposed(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Mostly contiguous; an image flattened to a row of pixels is transposed."""
    if len(shape) < 3 or draw.chance(0.8):
        return None
    return strides(shape, draw.one(((0, 2, 1), (1, 0, 2))))


def _layer(draw: Draw) -> Op:
    shape, width = _rows(draw)
    dtype = draw.dtype()
    # Under autocast input and weights are float32; in a model cast as a whole both are narrow.
    x, weight = Tensor(shape, dtype, stride=_transposed(draw, shape)), Tensor((width,), dtype)
    if draw.chance(0.45):
        return Op("aten::native_layer_norm", (x, [width], weight, weight, EPSILON), overload="default")
    statistics = Tensor((*shape[:-1], 1), "float32" if draw.kind == "cuda" else dtype)
    grad = Tensor(shape, dtype, stride=_transposed(draw, shape))
    args: tuple[Value, ...] = (grad, x, [width], statistics, statistics, weight, weight, ALL)
    return Op("aten::native_layer_norm_backward", args, overload="default")


def _root_mean_square(draw: Draw) -> Op:
    shape, width = _rows(draw)
    dtype = draw.dtype()
    x, weight = Tensor(shape, dtype), Tensor((width,), dtype)
    if draw.kind == "cpu" or draw.chance(0.45):
        return Op("aten::_fused_rms_norm", (x, [width], weight, EPSILON), overload="default")
    rstd = Tensor((*shape[:-1], 1), "float32")
    return Op("aten::_fused_rms_norm_backward", (x, x, [width], rstd, weight, [True, True]), overload="default")


def _image(draw: Draw, dtype: str) -> Tensor:
    channels = draw.size(8, min(2048, draw.most))
    side = draw.one((7, 8, 14, 16, 28, 32, 56, 64, 112, 128)) if draw.chance(0.7) else draw.whole(1, 160)
    while channels * side * side > draw.most and side > 1:
        side //= 2
    batch = draw.size(1, max(1, min(512, draw.most // (channels * side * side))))
    shape = (batch, channels, side, side)
    last = draw.kind == "cuda" and draw.chance(0.3)
    return Tensor(shape, dtype, stride=strides(shape, (0, 2, 3, 1) if last else None))


def _batch(draw: Draw) -> Op:
    dtype = draw.dtype()
    x = _image(draw, dtype)
    weight = Tensor((x.shape[1],), "float32")
    # PyTorch uses cuDNN where it can, which is not for bfloat16.
    cudnn = draw.kind == "cuda" and dtype != "bfloat16" and draw.chance(0.8)
    four = (weight, weight, weight, weight)
    if draw.chance(0.45):
        name = "cudnn_batch_norm" if cudnn else "native_batch_norm"
        return Op(f"aten::{name}", (x, *four, True, 0.1, EPSILON), overload="default")
    if cudnn:
        kept = Tensor((0,), "uint8")
        return Op("aten::cudnn_batch_norm_backward", (x, x, weight, *four, EPSILON, kept), overload="default")
    args = (x, x, weight, *four, True, EPSILON, ALL)
    return Op("aten::native_batch_norm_backward", args, overload="default")


def _group(draw: Draw) -> Op:
    dtype = draw.dtype()
    x = _image(draw, dtype)
    batch, channels, height, width = x.shape
    groups = draw.one([g for g in (1, 2, 4, 8, 16, 32) if channels % g == 0])
    x, weight = Tensor(x.shape, dtype), Tensor((channels,), dtype)  # channels-last tensors are made contiguous before
    sizes = (batch, channels, height * width, groups)
    if draw.chance(0.45):
        return Op("aten::native_group_norm", (x, weight, weight, *sizes, EPSILON), overload="default")
    statistics = Tensor((batch, groups), dtype)
    args = (x, x, statistics, statistics, weight, *sizes, ALL)
    return Op("aten::native_group_norm_backward", args, overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {_layer: 8, _batch: 8, _group: 2, _root_mean_square: 3}
