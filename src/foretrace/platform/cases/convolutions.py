"""Convolutions, forward and backward, over images, sequences and volumes, as today's networks have them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape, strides


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
    dims: int = 2
    """Dimensions of what it slides over: 1 for sequences, 2 for images, 3 for volumes."""
    transposed: bool = False
    biased: bool | None = None
    """None where such layers come with a bias and without."""

    @property
    def out_side(self) -> int:
        """Pixels along an edge of the output."""
        if self.transposed:
            return (self.side - 1) * self.stride - 2 * self.padding + self.kernel
        return (self.side + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def weight(self) -> Shape:
        """Shape of the weights."""
        first, second = (self.inner, self.outer) if self.transposed else (self.outer, self.inner)
        return (first, second // self.groups, *(self.kernel,) * self.dims)


class Layouts(NamedTuple):
    """Whether the channels of each tensor lie innermost."""

    input: bool
    weight: bool
    gradient: bool


def draw(draw: Draw) -> Case:
    """A convolution, or the gradient of one.

    >>> "convolution" in draw(Draw("0", most=4096, kind="cpu")).op.name
    True
    """
    layer = _shrunk(draw.weighted(_LAYERS)(draw), draw.most)
    dtype = draw.weighted({"bfloat16": 5, "float32": 5, "float16": 1} if draw.kind == "cuda" else {"float32": 1})
    largest = max(layer.inner * layer.side**layer.dims, layer.outer * layer.out_side**layer.dims)
    batch = draw.size(1, max(1, min(256, draw.most // largest)))
    layouts = _layouts(draw)
    x = _images(dtype, (batch, layer.inner, *(layer.side,) * layer.dims), layouts.input)
    weight = _images(dtype, layer.weight, layouts.weight)
    biased = draw.chance(0.3) if layer.biased is None else layer.biased
    window: tuple[Value, ...] = (
        [layer.stride] * layer.dims, [layer.padding] * layer.dims, [1] * layer.dims, layer.transposed,
        [0] * layer.dims, layer.groups,
    )  # fmt: skip
    # cuDNN may use the matrix units for float32 unless a script forbids it.
    tf32 = dtype == "float32" and draw.chance(0.9)
    if draw.chance(0.45):
        bias = Tensor((layer.outer,), dtype) if biased else None
        return Case(Op("aten::convolution", (x, weight, bias, *window), overload="default"), tf32=tf32)
    grad = _images(dtype, (batch, layer.outer, *(layer.out_side,) * layer.dims), layouts.gradient)
    sizes: list[Value] = [layer.outer if biased else 0]
    args = (grad, x, weight, sizes, *window, _wanted(draw, layer, biased))
    return Case(Op("aten::convolution_backward", args, overload="default"), tf32=tf32)


def _wanted(draw: Draw, layer: Layer, biased: bool) -> list[Value]:
    """Gradients of input, weight and bias: the first layer's input needs none, nor do the weights of a frozen one."""
    if layer.inner == 3 or draw.chance(0.08):
        return [False, True, biased]
    return [True, not draw.chance(0.05), biased]


def _layouts(draw: Draw) -> Layouts:
    """Mostly all the same; norms and views between the layers leave other mixtures."""
    style = draw.weighted({"first": 10, "last": 5, "activations last": 3, "mixed": 2})
    if style == "mixed":
        return Layouts(draw.chance(0.5), False, draw.chance(0.5))
    return Layouts(style != "first", style == "last", style != "first")


def _images(dtype: str, shape: Shape, last: bool) -> Tensor:
    order = (0, *range(2, len(shape)), 1) if last else None
    return Tensor(shape, dtype, stride=strides(shape, order))


def _shrunk(layer: Layer, most: int) -> Layer:
    """The same layer with fewer channels and on a smaller image, where the whole one would be too large."""
    inner, outer, side = layer.inner, layer.outer, layer.side
    while layer.groups == 1 and prod(layer._replace(inner=inner, outer=outer).weight) > most:
        inner, outer = inner if inner == 3 else -(-inner // 2), -(-outer // 2)
    widened = layer.stride if layer.transposed else 1
    while side > layer.kernel and max(inner, outer) * (widened * side) ** layer.dims > most:
        side //= 2
    return layer._replace(inner=inner, outer=outer, side=max(side, layer.kernel))


def _channels(draw: Draw, low: int, high: int) -> int:
    step = draw.one((1, 8, 8, 16, 32, 64, 64))
    return max(step, draw.whole(low, high) // step * step)


def _side(draw: Draw, low: int = 7, high: int = 112) -> int:
    """Halvings of the usual image sizes, and any other."""
    usual = [side for side in (7, 8, 14, 14, 16, 28, 28, 32, 48, 56, 56, 64, 96, 112) if low <= side <= high]
    return draw.one(usual) if draw.chance(0.7) else draw.whole(low, high)


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


def _bottleneck(draw: Draw) -> Layer:
    """A stage of a residual network: the smaller the image, the more channels."""
    stage = draw.random.randrange(4)
    width = 64 * 2**stage * draw.one((1, 1, 1, 2)) if draw.chance(0.6) else _channels(draw, 32 << stage, 160 << stage)
    side = max(4, round(56 * draw.random.uniform(0.5, 1.2)) >> stage) if draw.chance(0.6) else 56 >> stage
    style = draw.weighted({"reduce": 3, "middle": 4, "expand": 3, "down": 2, "shortcut": 2})
    if style in ("reduce", "expand"):
        inner, outer = (4 * width, width) if style == "reduce" else (width, 4 * width)
        return Layer(inner, outer, 1, 1, 0, 1, side, biased=False)
    if style == "shortcut":
        return Layer(2 * width, 4 * width, 1, 2, 0, 1, 2 * side, biased=False)
    stride = 2 if style == "down" else 1
    return Layer(width, width, 3, stride, 1, 1, side * stride, biased=False)


def _stem(draw: Draw) -> Layer:
    side, outer = draw.one((128, 160, 192, 224, 224, 256, 299)), _channels(draw, 16, 128)
    kernel, stride, padding = draw.one(((7, 2, 3), (3, 2, 1), (3, 1, 1), (4, 4, 0)))
    return Layer(3, outer, kernel, stride, padding, 1, side)


def _patches(draw: Draw) -> Layer:
    kernel = draw.one((4, 8, 14, 16, 16, 32))
    outer = draw.size(64, 256) if kernel < 14 else draw.size(192, 1280)
    return Layer(3, outer, kernel, kernel, 0, 1, kernel * draw.whole(8, 20 if kernel >= 14 else 64), biased=True)


def _depthwise(draw: Draw) -> Layer:
    kernel, channels = draw.one((3, 3, 3, 5, 7, 7)), _channels(draw, 16, 1152)
    side = max(kernel, _side(draw))
    # Seven wide is ConvNeXt's, which has biases and never skips; the narrow ones come with a batch norm.
    stride = 1 if kernel == 7 else draw.one((1, 1, 1, 2))
    return Layer(channels, channels, kernel, stride, kernel // 2, channels, side, biased=kernel == 7)


def _pointwise(draw: Draw) -> Layer:
    """The narrow and wide ends of an inverted residual."""
    narrow = _channels(draw, 8, 320)
    wide = narrow * draw.one((1, 2, 3, 4, 6, 6))
    inner, outer = (narrow, wide) if draw.chance(0.5) else (wide, narrow)
    return Layer(inner, outer, 1, 1, 0, 1, _side(draw), biased=False)


def _squeeze(draw: Draw) -> Layer:
    """Channels weighed by what a whole image looks like: an image of one pixel."""
    wide, narrow = _channels(draw, 32, 1536), _channels(draw, 8, 96)
    inner, outer = (narrow, wide) if draw.chance(0.5) else (wide, narrow)
    return Layer(inner, outer, 1, 1, 0, 1, 1, biased=True)


def _grouped(draw: Draw) -> Layer:
    groups = draw.one((2, 4, 8, 16, 32))
    channels = groups * draw.one((4, 8, 16, 32, 64))
    return Layer(channels, channels, 3, draw.one((1, 1, 2)), 1, groups, _side(draw))


def _downsample(draw: Draw) -> Layer:
    channels = _channels(draw, 32, 768)
    return Layer(channels, 2 * channels, 2, 2, 0, 1, _side(draw) // 2 * 2)


def _segmenting(draw: Draw) -> Layer:
    """A level of a U-Net: large images, joined channels, a bias."""
    level = draw.random.randrange(5)
    width, side = _channels(draw, 16 << level, 80 << level), max(3, draw.whole(128, 320) >> level)
    return Layer(min(2048, width * draw.one((1, 1, 2))), min(1024, width), draw.one((1, 3, 3, 3)), 1, 1, 1, side)


def _upward(draw: Draw) -> Layer:
    inner, side = _channels(draw, 16, 1024), draw.whole(4, 96)
    kernel, padding = draw.one(((2, 0), (2, 0), (4, 1), (3, 1)))
    return Layer(inner, max(1, inner // draw.one((1, 2, 2, 4))), kernel, 2, padding, 1, side, transposed=True)


def _sequence(draw: Draw) -> Layer:
    channels = _channels(draw, 32, 1280)
    kernel = draw.one((1, 2, 3, 3, 4, 5, 10))
    inner = draw.one((channels, channels, _channels(draw, 32, 1280), 80))
    groups = channels if inner == channels and kernel > 2 and draw.chance(0.3) else 1
    return Layer(inner, channels, kernel, draw.one((1, 1, 2)), kernel // 2, groups, draw.whole(32, 16384), dims=1)


def _volume(draw: Draw) -> Layer:
    inner, kernel = draw.one((3, _channels(draw, 8, 256), _channels(draw, 8, 256))), draw.one((1, 3, 3))
    return Layer(inner, _channels(draw, 8, 256), kernel, draw.one((1, 1, 2)), kernel // 2, 1, draw.whole(4, 64), dims=3)


_LAYERS: dict[Callable[[Draw], Layer], int] = {
    _bottleneck: 9,
    _residual: 5,
    _stem: 2,
    _patches: 2,
    _depthwise: 7,
    _pointwise: 5,
    _squeeze: 1,
    _grouped: 2,
    _downsample: 2,
    _segmenting: 3,
    _upward: 1,
    _sequence: 2,
    _volume: 1,
}
