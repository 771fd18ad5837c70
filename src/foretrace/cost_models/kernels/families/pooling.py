"""Pooling, forward and backward: a thread per output, which loops over its window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    RESIDENT,
    alignment,
    argument,
    bool_argument,
    ceil_div,
    channels_last,
    dtype_code,
    int_list_argument,
    ints_in,
    log,
    tensors_of,
    wave_quantization,
)  # fmt: skip
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.measurements.cases import Case, Draw, strides

WINDOWED = ("aten::max_pool2d_with_indices", "aten::avg_pool2d")
ADAPTIVE = ("aten::_adaptive_avg_pool2d", "aten::adaptive_max_pool2d", "aten::upsample_nearest2d",
            "aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::_upsample_nearest_exact2d",
            "aten::_upsample_bilinear2d_aa")  # fmt: skip
THREADS = 256
"""Threads of a block for one plane."""
INDEX_BYTES = 8
"""Bytes of the index of a maximum."""


class Sides(NamedTuple):
    """Sides of the larger and the smaller plane, and the window between them."""

    large: tuple[int, int]
    small: tuple[int, int]
    window: float
    step: float


class Pooling(Family):
    """Max, average and adaptive pooling."""

    name = "pooling"
    share = 1.5
    ops = tuple(name + ending for name in (*WINDOWED, *ADAPTIVE) for ending in ("", "_backward"))
    columns = ("op", "dtype", "bytes", "planes", "in_plane", "out_plane", "window", "step", "channels_last",
               "channels", "batch", "width", "out_width", "channels_aligned", "waves", "plane_waves", "plane_ragged",
               "chain", "roof", "threads", "each", "mixed")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Pooling whose input is known and has planes; resizing is a family of its own."""
        return self.has_planes(op) and "upsample" not in op.name

    def has_planes(self, op: Op) -> bool:
        """Whether the input is known and has planes."""
        tensors = tensors_of(op)
        return bool(tensors) and len(tensors[0].shape) >= 3

    def describe(self, op: Op, context: CallContext) -> Description:
        """Planes, their sizes before and after, and the loop of a thread."""
        tensors = tensors_of(op)
        first = tensors[0]
        backward = op.name.endswith("_backward")
        sides = _sides(op, tensors, backward)
        planes = math.prod(first.shape[:-2])
        batch = first.shape[0] if len(first.shape) > 3 else 1
        item, sms = first.itemsize, context.device.sms
        large, small = planes * math.prod(sides.large), planes * math.prod(sides.small)
        last = channels_last(tensors[1] if backward and len(tensors) > 1 else first)
        # In the backward of max pooling, a thread searches the windows around its element.
        results = large if backward and "adaptive" not in op.name else small if "upsample" not in op.name else large
        waves = results / (sms * RESIDENT)
        plane_waves = planes * THREADS / (sms * RESIDENT)
        each = ceil_div(math.prod(sides.small), THREADS)
        chain = math.ceil(waves) * sides.window / 4
        if "adaptive" in op.name:
            chain = sides.window if last else math.ceil(plane_waves) * each * sides.window / 4
        elif op.name == "aten::upsample_bilinear2d" and not last:
            chain = 0.6 * planes  # a thread computes one pixel of every plane
        moved = (large + small) * item + (small * INDEX_BYTES if "max" in op.name else 0)
        if backward and ("max" in op.name or "adaptive" in op.name or "bilinear" in op.name):
            moved += large * item  # zeroed first
        work = Work(bytes=moved, round_trips=chain)
        features = [
            self.op_codes[op.name], dtype_code(first.dtype), log(moved), log(planes), log(math.prod(sides.large)),
            log(math.prod(sides.small)), sides.window, sides.step, last, log(planes / max(1, batch)), log(batch),
            sides.large[1], sides.small[1], alignment(planes // max(1, batch)), log(64 * waves), log(64 * plane_waves),
            wave_quantization(plane_waves), log(64 * chain), log(64 * work.us(context.device)), log(results), each,
            len(tensors) > 1 and channels_last(tensors[1]) != channels_last(first),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A random pooling or interpolation, or its gradient."""
        return Case(draw.weighted(_KINDS)(draw))


def _sides(op: Op, tensors: list[Tensor], backward: bool) -> Sides:
    first = tensors[0]
    shape = (first.shape[-2], first.shape[-1])
    if op.name.removesuffix("_backward") in WINDOWED:
        place = 2 if backward else 1
        kernel = int_list_argument(op, place, "kernel_size", 2, 1)
        given = ints_in(argument(op, place + 1, "stride"))
        step = int_list_argument(op, place + 1, "stride", 2, 1) if given else kernel
        window, stride = float(kernel[0] * kernel[1]), float(step[0])
        if backward:
            other = tensors[1].shape if len(tensors) > 1 and len(tensors[1].shape) > 2 else first.shape
            return Sides((other[-2], other[-1]), shape, window, stride)
        padding = int_list_argument(op, 3, "padding", 2, 0)
        up = bool_argument(op, 4 if "avg" in op.name else 5, "ceil_mode")
        each = zip(shape, padding, kernel, step)
        out = [(size + 2 * p - k + (s - 1 if up else 0)) // max(1, s) + 1 for size, p, k, s in each]
        return Sides(shape, (max(1, out[0]), max(1, out[1])), window, stride)
    large, small = shape, _other(op, tensors, backward, shape)
    if math.prod(small) > math.prod(large):
        large, small = small, large
    ratio = math.prod(large) / max(1, math.prod(small))
    return Sides(large, small, ratio, math.sqrt(ratio))


def _other(op: Op, tensors: list[Tensor], backward: bool, shape: tuple[int, int]) -> tuple[int, int]:
    """The output plane of an adaptive pooling or a resizing; of a backward, the input's."""
    if backward and "adaptive" in op.name and len(tensors) > 1:
        found = list(tensors[1].shape)
    else:
        found = ints_in(argument(op, 2 if backward else 1, "input_size" if backward else "output_size"))
    return (found[-2], found[-1]) if len(found) > 1 else shape


# Cases to measure


def draw_image(draw: Draw, low: int) -> tuple[Tensor, bool]:
    """A batch of feature maps, and whether they are channels-last."""
    channels = draw.size(8, 1024)
    side = draw.whole(low, 128)
    while channels * side * side > draw.most:
        channels, side = max(1, channels // 2), max(low, side // 2)
    batch = draw.size(1, max(1, min(256, draw.most // (channels * side * side))))
    last = draw.chance(0.3)
    shape = (batch, channels, side, side)
    return Tensor(shape, draw.dtype(), stride=strides(shape, (0, 2, 3, 1) if last else None)), last


def _pooled(x: Tensor, kernel: int, stride: int, padding: int, last: bool, dtype: str) -> Tensor:
    side = (x.shape[2] + 2 * padding - kernel) // stride + 1
    shape = (*x.shape[:2], side, side)
    return Tensor(shape, dtype, stride=strides(shape, (0, 2, 3, 1) if last else None))


def _max(draw: Draw) -> Op:
    x, last = draw_image(draw, low=8)
    kernel, stride, padding = draw.one(((3, 2, 1), (2, 2, 0), (3, 2, 0), (3, 1, 1)))
    window: tuple[Value, ...] = ([kernel, kernel], [stride, stride], [padding, padding])
    if draw.chance(0.5):
        return Op("aten::max_pool2d_with_indices", (x, *window), overload="default")
    grad = _pooled(x, kernel, stride, padding, last, x.dtype)
    places = _pooled(x, kernel, stride, padding, last, "int64")
    args: tuple[Value, ...] = (grad, x, *window, [1, 1], False, places)
    return Op("aten::max_pool2d_with_indices_backward", args, overload="default")


def _average(draw: Draw) -> Op:
    x, last = draw_image(draw, low=8)
    kernel, stride, padding = draw.one(((2, 2, 0), (3, 1, 1), (3, 2, 1)))
    window: tuple[Value, ...] = ([kernel, kernel], [stride, stride], [padding, padding])
    if draw.chance(0.5):
        return Op("aten::avg_pool2d", (x, *window), overload="default")
    grad = _pooled(x, kernel, stride, padding, last, x.dtype)
    return Op("aten::avg_pool2d_backward", (grad, x, *window, False, True, None), overload="default")


def _adaptive(draw: Draw) -> Op:
    x, _ = draw_image(draw, low=4)
    side = draw.one((1, 2, 7))
    if draw.chance(0.5):
        return Op("aten::_adaptive_avg_pool2d", (x, [side, side]), overload="default")
    grad = Tensor((*x.shape[:2], side, side), x.dtype)
    return Op("aten::_adaptive_avg_pool2d_backward", (grad, x), overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {_max: 4, _average: 2, _adaptive: 2}
