"""Convolutions over images, forward and backward, as ResNets, MobileNets, ConvNeXts and patch embeddings have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, strides


class Layer(NamedTuple):
    """One convolution: channels, window and groups."""

    inner: int
    outer: int
    kernel: int
    stride: int
    padding: int
    groups: int
    side: int
    """Pixels along an edge of the input."""


def draw(draw: Draw) -> Case:
    """A convolution, or the gradient of one.

    >>> "convolution" in draw(Draw("0", most=4096, kind="cpu")).op.name
    True
    """
    layer = _shrunk(draw.weighted(_LAYERS)(draw), draw.most)
    dtype = draw.weighted({"bfloat16": 4, "float32": 5, "float16": 1} if draw.kind == "cuda" else {"float32": 1})
    out_side = (layer.side + 2 * layer.padding - layer.kernel) // layer.stride + 1
    largest = max(layer.inner * layer.side**2, layer.outer * out_side**2)
    batch = draw.size(1, max(1, min(256, draw.most // largest)))
    last = draw.chance(0.4)
    order = (0, 2, 3, 1) if last else None

    def images(channels: int, height: int, width: int, count: int) -> Tensor:
        shape = (count, channels, height, width)
        return Tensor(shape, dtype, stride=strides(shape, order))

    x = images(layer.inner, layer.side, layer.side, batch)
    weight = images(layer.inner // layer.groups, layer.kernel, layer.kernel, layer.outer)
    biased = draw.chance(0.3)
    window: tuple[Value, ...] = (
        [layer.stride] * 2, [layer.padding] * 2, [1, 1], False, [0, 0], layer.groups,
    )  # fmt: skip
    tf32 = dtype == "float32" and draw.chance(0.75)
    if draw.chance(0.45):
        bias = Tensor((layer.outer,), dtype) if biased else None
        return Case(Op("aten::convolution", (x, weight, bias, *window), overload="default"), tf32=tf32)
    grad = images(layer.outer, out_side, out_side, batch)
    # The first layer of a network needs no gradient of its input.
    wanted: list[Value] = [layer.inner != 3, True, biased]
    sizes: list[Value] = [layer.outer if biased else 0]
    args = (grad, x, weight, sizes, *window, wanted)
    return Case(Op("aten::convolution_backward", args, overload="default"), tf32=tf32)


def _shrunk(layer: Layer, most: int) -> Layer:
    """The same layer with fewer channels and on a smaller image, where the whole one would be too large."""
    inner, outer, side = layer.inner, layer.outer, layer.side
    while layer.groups == 1 and inner * outer * layer.kernel**2 > most:
        inner, outer = inner if inner == 3 else -(-inner // 2), -(-outer // 2)
    while side > layer.kernel and max(inner, outer) * side * side > most:
        side //= 2
    return layer._replace(inner=inner, outer=outer, side=max(side, layer.kernel))


def _channels(draw: Draw, low: int, high: int) -> int:
    step = draw.one((1, 8, 8, 16, 32, 64))
    return max(step, draw.whole(low, high) // step * step)


def _side(draw: Draw) -> int:
    return draw.one((7, 8, 14, 14, 16, 28, 28, 32, 48, 56, 56, 64, 96, 112))


def _residual(draw: Draw) -> Layer:
    side, inner = _side(draw), _channels(draw, 16, 1024)
    style = draw.weighted({"1x1": 6, "3x3": 6, "down": 2, "5x5": 1})
    outer = draw.one((inner, inner * 2, inner * 4, max(1, inner // 4), max(1, inner // 2), _channels(draw, 16, 1024)))
    outer = min(outer, 2048)
    if style == "1x1":
        return Layer(inner, outer, 1, 1, 0, 1, side)
    if style == "down":
        kernel = draw.one((1, 3))
        return Layer(inner, outer, kernel, 2, kernel // 2, 1, side)
    kernel = 3 if style == "3x3" else 5
    return Layer(inner, min(outer, 1024), kernel, draw.one((1, 1, 2)), kernel // 2, 1, side)


def _stem(draw: Draw) -> Layer:
    side, outer = draw.one((128, 160, 192, 224, 224, 256, 299)), _channels(draw, 16, 128)
    kernel, stride, padding = draw.one(((7, 2, 3), (3, 2, 1), (3, 1, 1), (4, 4, 0)))
    return Layer(3, outer, kernel, stride, padding, 1, side)


def _patches(draw: Draw) -> Layer:
    kernel = draw.one((14, 16, 32))
    return Layer(3, draw.size(192, 1280), kernel, kernel, 0, 1, kernel * draw.whole(8, 20))


def _depthwise(draw: Draw) -> Layer:
    kernel, channels = draw.one((3, 3, 5, 7, 7)), _channels(draw, 16, 1024)
    return Layer(channels, channels, kernel, draw.one((1, 1, 1, 2)), kernel // 2, channels, max(kernel, _side(draw)))


def _grouped(draw: Draw) -> Layer:
    groups = draw.one((2, 4, 8, 16, 32))
    channels = groups * draw.one((4, 8, 16, 32, 64))
    return Layer(channels, channels, 3, draw.one((1, 1, 2)), 1, groups, _side(draw))


def _downsample(draw: Draw) -> Layer:
    channels = _channels(draw, 32, 768)
    return Layer(channels, 2 * channels, 2, 2, 0, 1, _side(draw) // 2 * 2)


_LAYERS: dict[Callable[[Draw], Layer], int] = {
    _residual: 12,
    _stem: 2,
    _patches: 1,
    _depthwise: 4,
    _grouped: 2,
    _downsample: 2,
}
