"""Images sampled at the points of a grid: spatial transformers, optical flow, deformable attention."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    RESIDENT,
    alignment,
    channels_last,
    dtype_code,
    int_argument,
    log,
    tensors_of,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.measurements.cases import Case, Draw, strides

NATIVE, CUDNN = "aten::grid_sampler_2d", "aten::cudnn_grid_sampler"
TAPS = (4, 1, 16)
"""Pixels that a point reads, by mode: bilinear, nearest, bicubic."""


class GridSampling(Family):
    """A thread for each point, which goes through all channels; backward, pixels are added to atomically."""

    name = "grid_sampling"
    share = 1
    ops = (NATIVE, f"{NATIVE}_backward", CUDNN, f"{CUDNN}_backward", "aten::grid_sampler_3d",
           "aten::grid_sampler_3d_backward")  # fmt: skip
    columns = ("op", "dtype", "batch", "channels", "pixels", "points", "mode", "last", "width", "aligned", "bytes",
               "threads", "roof")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Calls whose image and grid are known."""
        return all(len(t.shape) > 3 for t in _image_and_grid(op)) and len(_image_and_grid(op)) == 2

    def describe(self, op: Op, context: CallContext) -> Description:
        """The image, the points, and the bytes that they read."""
        image, grid = _image_and_grid(op)
        batch, channels = image.shape[:2]
        points = math.prod(grid.shape[:-1])
        backward = op.name.endswith("backward")
        mode = 0 if CUDNN in op.name else int_argument(op, 2 + backward, "interpolation_mode", 0)
        taps = TAPS[mode] if 0 <= mode < len(TAPS) else 4
        touched = min(image.numel * 1.0, points * channels * float(taps)) * (2 + 2 * backward)
        work = Work(2.0 * points * channels * taps, image.itemsize * (touched + points * channels) + grid.nbytes)
        features = [
            self.op_codes[op.name], dtype_code(image.dtype), log(batch), log(channels), log(math.prod(image.shape[2:])),
            log(points), mode, channels_last(image), log(grid.shape[-2]), alignment(image.shape[-1]), log(work.bytes),
            log(64 * points / (context.device.sms * RESIDENT)), log(64 * work.us(context.device)),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """An image and the points where it is sampled, forward or backward."""
        side, wide = draw.size(8, 256), draw.size(4, 256)
        channels = draw.one((1, 3, 3, draw.size(8, 256), draw.size(8, 256)))
        channels = min(channels, max(1, draw.most // max(side, wide) ** 2))
        largest = channels * max(side, wide) ** 2
        batch = draw.size(1, max(1, min(256, draw.most // 4 // largest)))
        dtype = draw.weighted({"float32": 4, "bfloat16": 1, "float16": 1}) if draw.kind == "cuda" else "float32"
        whole, made = (batch, channels, side, side), (batch, channels, wide, wide)
        order = (0, 2, 3, 1) if draw.chance(0.3) else None
        image = Tensor(whole, dtype, stride=strides(whole, order))
        grid = Tensor((batch, wide, wide, 2), dtype)
        backward = draw.chance(0.45)
        first: tuple[Value, ...] = (Tensor(made, dtype),) if backward else ()
        if draw.kind == "cuda" and order is None and dtype == "float32" and draw.chance(0.25):
            given = (image, grid, *first)
            return Case(Op(f"{CUDNN}_backward" if backward else CUDNN, given, overload="default"))
        how: tuple[Value, ...] = (draw.one((0, 0, 0, 1, 2)), draw.one((0, 0, 1)), draw.chance(0.4))
        mask: tuple[Value, ...] = ([True, draw.chance(0.5)],) if backward else ()
        name = f"{NATIVE}_backward" if backward else NATIVE
        return Case(Op(name, (*first, image, grid, *how, *mask), overload="default"))


def _image_and_grid(op: Op) -> list[Tensor]:
    """The image and the points; what is native gets the gradient before them."""
    found = tensors_of(op)
    return found[1:3] if op.name.endswith("backward") and CUDNN not in op.name else found[:2]
