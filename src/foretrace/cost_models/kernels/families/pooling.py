"""Pooling over windows, and resizing, forward and backward: a thread per result, that walks its window alone."""

from __future__ import annotations

import math
from typing import NamedTuple

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    channels_last,
    dtype_code,
    flag,
    integers,
    log,
    per,
    ragged,
    tensors_of,
    whole,
)  # fmt: skip
from foretrace.graph import Op, Tensor

WINDOWED = ("aten::max_pool2d_with_indices", "aten::avg_pool2d")
ADAPTIVE = ("aten::_adaptive_avg_pool2d", "aten::adaptive_max_pool2d", "aten::upsample_nearest2d",
            "aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::_upsample_nearest_exact2d",
            "aten::_upsample_bilinear2d_aa")  # fmt: skip
THREADS, RESIDENT = 256, 2048
INDEX = 8
"""Bytes of the place of a largest element."""


class Sides(NamedTuple):
    """Elements of a plane before and after, and of the window between them."""

    large: tuple[int, int]
    small: tuple[int, int]
    window: float
    step: float


class Pooling(Family):
    """Largest or mean of a window, and nearest or linear resizing."""

    name = "pooling"
    ops = tuple(name + ending for name in (*WINDOWED, *ADAPTIVE) for ending in ("", "_backward"))
    columns = ("op", "dtype", "bytes", "planes", "in_plane", "out_plane", "window", "step", "channels_last",
               "channels", "batch", "width", "out_width", "channels_aligned", "waves", "plane_waves", "plane_ragged",
               "chain", "roof", "threads", "each", "mixed")  # fmt: skip

    def takes(self, op: Op) -> bool:
        """Calls whose tensors are known and have planes."""
        tensors = tensors_of(op)
        return bool(tensors) and len(tensors[0].shape) >= 3

    def describe(self, op: Op, facts: Facts) -> Described:
        """Planes, their sizes before and after, and how long a thread walks."""
        tensors = tensors_of(op)
        first = tensors[0]
        backward = op.name.endswith("_backward")
        sides = _sides(op, tensors, backward)
        planes = math.prod(first.shape[:-2])
        batch = first.shape[0] if len(first.shape) > 3 else 1
        item, sms = first.itemsize, facts.device.sms
        large, small = planes * math.prod(sides.large), planes * math.prod(sides.small)
        last = channels_last(tensors[1] if backward and len(tensors) > 1 else first)
        # Backward of a largest element, a thread looks for itself among the windows around it.
        results = large if backward and "adaptive" not in op.name else small if "upsample" not in op.name else large
        waves = results / (sms * RESIDENT)
        plane_waves = planes * THREADS / (sms * RESIDENT)
        each = per(math.prod(sides.small), THREADS)
        chain = math.ceil(waves) * sides.window / 4
        if "adaptive" in op.name:
            chain = sides.window if last else math.ceil(plane_waves) * each * sides.window / 4
        elif op.name == "aten::upsample_bilinear2d" and not last:
            chain = 0.6 * planes  # a thread has a pixel of every plane
        moved = (large + small) * item + (small * INDEX if "max" in op.name else 0)
        if backward and ("max" in op.name or "adaptive" in op.name or "bilinear" in op.name):
            moved += large * item  # cleared first
        work = Work(bytes=moved, trips=chain)
        features = [
            PLACE[op.name], dtype_code(first.dtype), log(moved), log(planes), log(math.prod(sides.large)),
            log(math.prod(sides.small)), sides.window, sides.step, last, log(planes / max(1, batch)), log(batch),
            sides.large[1], sides.small[1], alignment(planes // max(1, batch)), log(64 * waves), log(64 * plane_waves),
            ragged(plane_waves), log(64 * chain), log(64 * work.us(facts.device)), log(results), each,
            len(tensors) > 1 and channels_last(tensors[1]) != channels_last(first),
        ]  # fmt: skip
        return Described(features, work)


PLACE = {name: place for place, name in enumerate(Pooling.ops)}


def _sides(op: Op, tensors: list[Tensor], backward: bool) -> Sides:
    first = tensors[0]
    shape = (first.shape[-2], first.shape[-1])
    if op.name.removesuffix("_backward") in WINDOWED:
        place = 2 if backward else 1
        kernel = integers(op, place, "kernel_size", 2, 1)
        given = whole(argument(op, place + 1, "stride"))
        step = integers(op, place + 1, "stride", 2, 1) if given else kernel
        window, stride = float(kernel[0] * kernel[1]), float(step[0])
        if backward:
            other = tensors[1].shape if len(tensors) > 1 and len(tensors[1].shape) > 2 else first.shape
            return Sides((other[-2], other[-1]), shape, window, stride)
        padding = integers(op, 3, "padding", 2, 0)
        up = flag(op, 4 if "avg" in op.name else 5, "ceil_mode")
        each = zip(shape, padding, kernel, step)
        out = [(size + 2 * p - k + (s - 1 if up else 0)) // max(1, s) + 1 for size, p, k, s in each]
        return Sides(shape, (max(1, out[0]), max(1, out[1])), window, stride)
    large, small = shape, _other(op, tensors, backward, shape)
    if math.prod(small) > math.prod(large):
        large, small = small, large
    ratio = math.prod(large) / max(1, math.prod(small))
    return Sides(large, small, ratio, math.sqrt(ratio))


def _other(op: Op, tensors: list[Tensor], backward: bool, shape: tuple[int, int]) -> tuple[int, int]:
    """The plane on the other side of an adaptive pooling or a resizing."""
    if backward and "adaptive" in op.name and len(tensors) > 1:
        found = list(tensors[1].shape)
    else:
        found = whole(argument(op, 2 if backward else 1, "input_size" if backward else "output_size"))
    return (found[-2], found[-1]) if len(found) > 1 else shape
