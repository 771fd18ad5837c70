"""Interpolation of images: nearest, bilinear and bicubic, forward and backward."""

from __future__ import annotations

from foretrace.cost_models.kernels.families.pooling import Pooling, draw_image
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.measurements.cases import Case, Draw, strides


class Resampling(Pooling):
    """Resizing of planes: a thread per pixel of the result; backward, pixels are added to atomically."""

    name = "resampling"
    share = 1.5

    def accepts(self, op: Op) -> bool:
        """Interpolation whose input is known and has planes."""
        return self.has_planes(op) and "upsample" in op.name

    def case(self, draw: Draw) -> Case:
        """An image made larger, or the gradient of that."""
        return Case(_larger(draw))


def _larger(draw: Draw) -> Op:
    x, last = draw_image(draw, low=4)
    batch, channels, side, _ = x.shape
    scale = draw.one((2, 2, 2, 4, 8, 16))
    while batch * channels * (scale * side) ** 2 > draw.most and batch * channels > 1:
        batch, channels = (batch // 2, channels) if batch > 1 else (1, channels // 2)
    wide = scale * side - (draw.whole(1, scale) if draw.chance(0.2) else 0)
    small, large = (batch, channels, side, side), (batch, channels, wide, wide)
    order = (0, 2, 3, 1) if last else None
    bilinear = draw.chance(0.6)
    name = "upsample_bilinear2d" if bilinear else "upsample_nearest2d"
    size: list[Value] = [wide, wide]
    rest: tuple[Value, ...] = (False,) if bilinear else ()
    if draw.chance(0.5):
        return Op(
            f"aten::{name}", (Tensor(small, x.dtype, stride=strides(small, order)), size, *rest), overload="default"
        )
    grad = Tensor(large, x.dtype, stride=strides(large, order))
    args: tuple[Value, ...] = (grad, size, list(small), *rest)
    return Op(f"aten::{name}_backward", args, overload="default")
