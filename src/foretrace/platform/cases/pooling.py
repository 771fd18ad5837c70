"""Images made smaller and larger: pooling and interpolation, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, strides


def draw(draw: Draw) -> Case:
    """A pooling or an interpolation, or the gradient of one.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name.startswith("aten::")
    True
    """
    return Case(draw.weighted(_KINDS)(draw))


def _image(draw: Draw, low: int) -> tuple[Tensor, bool]:
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
    x, last = _image(draw, low=8)
    kernel, stride, padding = draw.one(((3, 2, 1), (2, 2, 0), (3, 2, 0), (3, 1, 1)))
    window: tuple[Value, ...] = ([kernel, kernel], [stride, stride], [padding, padding])
    if draw.chance(0.5):
        return Op("aten::max_pool2d_with_indices", (x, *window), overload="default")
    grad = _pooled(x, kernel, stride, padding, last, x.dtype)
    places = _pooled(x, kernel, stride, padding, last, "int64")
    args: tuple[Value, ...] = (grad, x, *window, [1, 1], False, places)
    return Op("aten::max_pool2d_with_indices_backward", args, overload="default")


def _average(draw: Draw) -> Op:
    x, last = _image(draw, low=8)
    kernel, stride, padding = draw.one(((2, 2, 0), (3, 1, 1), (3, 2, 1)))
    window: tuple[Value, ...] = ([kernel, kernel], [stride, stride], [padding, padding])
    if draw.chance(0.5):
        return Op("aten::avg_pool2d", (x, *window), overload="default")
    grad = _pooled(x, kernel, stride, padding, last, x.dtype)
    return Op("aten::avg_pool2d_backward", (grad, x, *window, False, True, None), overload="default")


def _adaptive(draw: Draw) -> Op:
    x, _ = _image(draw, low=4)
    side = draw.one((1, 2, 7))
    if draw.chance(0.5):
        return Op("aten::_adaptive_avg_pool2d", (x, [side, side]), overload="default")
    grad = Tensor((*x.shape[:2], side, side), x.dtype)
    return Op("aten::_adaptive_avg_pool2d_backward", (grad, x), overload="default")


def _larger(draw: Draw) -> Op:
    x, last = _image(draw, low=4)
    batch, channels, side, _ = x.shape
    if 4 * x.numel > 2 * draw.most:
        batch = max(1, batch // 4)
    small, large = (batch, channels, side, side), (batch, channels, 2 * side, 2 * side)
    order = (0, 2, 3, 1) if last else None
    bilinear = draw.chance(0.6)
    name = "upsample_bilinear2d" if bilinear else "upsample_nearest2d"
    size: list[Value] = [2 * side, 2 * side]
    rest: tuple[Value, ...] = (False,) if bilinear else ()
    if draw.chance(0.5):
        return Op(
            f"aten::{name}", (Tensor(small, x.dtype, stride=strides(small, order)), size, *rest), overload="default"
        )
    grad = Tensor(large, x.dtype, stride=strides(large, order))
    args: tuple[Value, ...] = (grad, size, list(small), *rest)
    return Op(f"aten::{name}_backward", args, overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {_max: 4, _average: 2, _adaptive: 2, _larger: 2}
