"""Convolutions, forward and backward: as implicit GEMMs, with the layout changes that libraries make."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from foretrace.cost_models.kernels.families.reductions import reduce_plan
from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    RESIDENT,
    alignment,
    argument,
    bitmask,
    bool_argument,
    ceil_div,
    channels_last,
    dtype_code,
    int_argument,
    int_list_argument,
    log,
    tensors_of,
    wave_quantization,
)  # fmt: skip
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Tf32, Value
from foretrace.graph.op import contiguous_strides
from foretrace.platform.measurements.cases import Case, Draw, Shape, strides

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.kernel_names import TiledKernel

FORWARD = ("aten::convolution", "aten::_convolution", "aten::cudnn_convolution", "aten::convolution_overrideable")
BACKWARD = "aten::convolution_backward"
MASK = 10
"""Position of ``output_mask``: the gradients that a backward call computes."""
TILES = ((64, 64), (128, 64), (128, 128), (256, 128))
TAP = 128
"""Side, in channels, of the tiles in which the gradient of a filter is computed, tap by tap."""
INPUT, FILTER, BIAS = 1, 2, 4
"""Gradients of a backward call, as bits of its mask."""
BIAS_COLUMNS = ("sum_along", "sum_wide", "sum_width", "sum_height", "sum_blocks", "sum_split", "sum_each", "sum_ragged")
"""Columns for the reduction that computes the gradient of a bias."""
TF32_CODE = 10
"""Code of float32 on Tensor Cores, beside those of dtypes."""


class Shapes(NamedTuple):
    """Tensors and parameters of a convolution."""

    x: Tensor
    w: Tensor
    out: tuple[int, ...]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    transposed: bool
    biased: bool
    mask: int
    """Gradients to compute; 0 forward."""
    after: bool = False
    """Whether another gradient of the same call was computed just before, from the same tensors."""


class Convolutions(Family):
    """cuDNN's and PyTorch's own convolutions, of one to three dimensions."""

    name = "convolutions"
    share = 24
    slow_to_plan = True
    ops = (*FORWARD, BACKWARD)
    columns = ("op", "dtype", "dims", "batch", "inputs", "outputs", "in_plane", "out_plane", "window", "step",
               "padding", "dilation", "groups", "transposed", "channels_last", "filter_last", "biased", "mask",
               "flops", "bytes", "roof", "inputs_aligned", "outputs_aligned", "group_inputs", "group_outputs",
               "height", "width", "width_aligned", "intensity", "m", "n", "k", "turned",
               *(f"waves_{a}x{b}" for a, b in TILES), *(f"ragged_{a}x{b}" for a, b in TILES), "deepest",
               "innermost", "filter_says", "grad_says", "copied_x", "copied_filter", "copied_grad",
               "copied", "after", "taps", "ragged_taps", *BIAS_COLUMNS, "processors")  # fmt: skip
    gemm_sizes: ClassVar[tuple[str, ...]] = ("groups", "m", "n", "k", "processors")

    def accepts(self, op: Op) -> bool:
        """Calls whose input and filter are known, but for grouped and dilated ones."""
        return self.has_shapes(op) and not is_variant(op)

    def has_shapes(self, op: Op) -> bool:
        """Whether input and filter are known."""
        later = 1 if op.name == BACKWARD else 0
        tensors = tensors_of(op)[later : later + 2]
        return len(tensors) == 2 and len(tensors[0].shape) == len(tensors[1].shape) > 2

    def describe(self, op: Op, context: CallContext) -> Description:
        """Sizes, layouts, and the tiles of the implicit GEMM."""
        s = _shapes(op)
        x, w, out = s.x, s.w, s.out
        (m, n, k), work, layout_bytes = _implicit_gemm(s, context)
        sms = context.device.sms
        tiles = [ceil_div(m, a) * ceil_div(n, b) * s.groups / sms for a, b in TILES]
        tf32 = x.dtype == "float32" and context.tf32
        inputs = x.shape[1] if len(x.shape) > 1 else 1
        outputs = out[1] if len(out) > 1 else 1
        window = math.prod(w.shape[2:])
        taps = window * ceil_div(outputs / s.groups, TAP) * ceil_div(inputs / s.groups, TAP) * s.groups / sms
        features = [
            _kind(s), TF32_CODE if tf32 else dtype_code(x.dtype), len(x.shape), log(x.shape[0]), log(inputs),
            log(outputs), log(math.prod(x.shape[2:])), log(math.prod(out[2:])), window, s.stride[0],
            s.padding[0], s.dilation[0], log(s.groups), s.transposed, channels_last(x), channels_last(w), s.biased,
            s.mask, log(work.flops), log(work.bytes), log(64 * work.us(context.device)), alignment(inputs),
            alignment(outputs), log(inputs // max(1, s.groups)), log(outputs // max(1, s.groups)),
            x.shape[2] if len(x.shape) > 3 else 1, x.shape[-1], alignment(x.shape[-1]),
            log(64 * work.flops / max(1.0, work.bytes)), log(m), log(n), log(k), log(layout_bytes),
            *(log(64 * t) for t in tiles), *(wave_quantization(t) for t in tiles),
            log(k / 64 / max(1.0, sms / max(1.0, tiles[2] * sms))), *_layout_copies(s, op), s.after, log(64 * taps),
            wave_quantization(taps), *_bias_reduction(s, tensors_of(op)[0], sms), sms,
        ]  # fmt: skip
        return Description(features, work)

    def main_kernel(self, kernels: Sequence[str]) -> TiledKernel | None:
        """The kernel that convolved, without layout changes and other helpers."""
        from foretrace.cost_models.kernels.kernel_names import convolution_kernel  # fitting alone reads names

        return convolution_kernel(kernels)

    def may_use_tf32(self, settings: Tf32) -> bool:
        """Convolutions have a setting of their own."""
        return settings.convolutions

    def case(self, draw: Draw) -> Case:
        """A layer of a random network, forward or backward."""
        return conv_case(draw, draw.weighted(_LAYERS)(draw))


def _layout_copies(s: Shapes, op: Op) -> tuple[float, ...]:
    """Whether the library gets channels-last tensors, and the sizes of the tensors that are copied for that.

    PyTorch passes all tensors channels-last if the input or the filter is, else none, and copies those that differ.
    """
    given = [s.x, s.w, *([tensors_of(op)[0]] if op.name == BACKWARD else [])]
    suggested = [_suggests_channels_last(tensor) for tensor in given]
    last = suggested[0] or suggested[1]
    copied = [0.0 if _has_layout(tensor, last) else log(tensor.nbytes) for tensor in given]
    of_grad, copied_grad = (suggested[2], copied[2]) if len(given) > 2 else (False, 0.0)
    return last, suggested[1], of_grad, copied[0], copied[1], copied_grad, max(copied)


def _suggests_channels_last(tensor: Tensor) -> bool:
    """PyTorch's ``suggest_memory_format``: whether the strides are taken for channels-last; ambiguous ones are not."""
    shape, stride = tensor.shape, tensor.stride
    if stride is None or len(shape) not in (4, 5) or len(stride) != len(shape) or stride[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if stride[dim] < least or (dim == 0 and least == stride[1]):
            return False
        least = stride[dim] * max(1, shape[dim])
    return True


def _has_layout(tensor: Tensor, last: bool) -> bool:
    """Whether a tensor is dense and channels-last, or contiguous."""
    shape = tensor.shape
    stride = (
        tensor.stride if tensor.stride is not None and len(tensor.stride) == len(shape) else contiguous_strides(shape)
    )
    step = 1
    for dim in (1, *range(len(shape) - 1, 1, -1), 0) if last else range(len(shape) - 1, -1, -1):
        if shape[dim] != 1 and stride[dim] != step:
            return False
        step *= shape[dim]
    return True


def gradients(op: Op) -> list[Value]:
    """The gradients of a backward call, of input, filter and bias; None for one that is already computed.

    >>> gradients(Op(BACKWARD))
    [True, True, False]
    """
    wanted = argument(op, MASK, "output_mask")
    return list(wanted) if isinstance(wanted, (list, tuple)) else [True, True, False]


def _shapes(op: Op) -> Shapes:
    tensors = tensors_of(op)
    later = 1 if op.name == BACKWARD else 0
    x, w = tensors[later : later + 2]
    planes = max(0, len(x.shape) - 2)
    stride = int_list_argument(op, 3 + later, "stride", planes, 1)
    padding = int_list_argument(op, 4 + later, "padding", planes, 0)
    dilation = int_list_argument(op, 5 + later, "dilation", planes, 1)
    groups = max(1, int_argument(op, 8 + later, "groups", 1))
    transposed = bool_argument(op, 6 + later, "transposed")
    if later:
        wanted, shape = gradients(op), tensors[0].shape
        after = any(each is None for each in wanted)
        return Shapes(x, w, shape, stride, padding, dilation, groups, transposed, False, bitmask(wanted), after)
    more = int_list_argument(op, 7, "output_padding", planes, 0)
    sides = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, more)
    if transposed:
        out = [(size - 1) * s - 2 * p + d * (k - 1) + m + 1 for size, k, s, p, d, m in sides]
        channels = (w.shape[1] if len(w.shape) > 1 else 1) * groups
    else:
        out = [(size + 2 * p - d * (k - 1) - 1) // max(1, s) + 1 for size, k, s, p, d, _ in sides]
        channels = w.shape[0] if w.shape else 1
    batch = x.shape[0] if x.shape else 1
    biased = len(tensors) > 2
    shape = (batch, channels, *(max(0, n) for n in out))
    return Shapes(x, w, shape, stride, padding, dilation, groups, transposed, biased, 0)


def _is_depthwise(s: Shapes) -> bool:
    """Whether each channel has its own filter."""
    return s.groups > 1 and s.groups == (s.x.shape[1] if len(s.x.shape) > 1 else 1)


def is_variant(op: Op) -> bool:
    """Whether a convolution has groups of several channels, or a dilated window over an image.

    Dilated windows over sequences and volumes were never measured: they are taken for plain ones.

    >>> x, w = Tensor((1, 8, 9, 9), "float32"), Tensor((8, 4, 3, 3), "float32")
    >>> is_variant(Op("aten::convolution", (x, w, None, [1], [1], [1], False, [0], 2)))
    True
    """
    s = _shapes(op)
    return (s.groups > 1 and not _is_depthwise(s)) or (len(s.x.shape) == 4 and any(step > 1 for step in s.dilation))


def _kind(s: Shapes) -> int:
    """A code for what is computed and how: forward or which gradients, depthwise or not."""
    return 2 * s.mask + (_is_depthwise(s) and s.mask != BIAS)


def _bias_reduction(s: Shapes, grad: Tensor, sms: int) -> list[float]:
    """How PyTorch reduces to the gradient of a bias; zeros for everything else."""
    if s.mask != BIAS:
        return [0.0] * len(BIAS_COLUMNS)
    cut = reduce_plan(grad, {0, *range(2, len(grad.shape))}, sms)
    blocks, threads = cut.blocks * cut.split, cut.width * cut.height
    waves = blocks * threads / (sms * RESIDENT)
    sizes = (cut.width, cut.height, blocks, cut.split, cut.each)
    return [cut.along, cut.wide, *map(log, sizes), wave_quantization(waves)]


def _implicit_gemm(s: Shapes, context: CallContext) -> tuple[tuple[float, float, float], Work, float]:
    """The sizes of a group's GEMM, the roofline, and the bytes moved to change layouts."""
    x, w = s.x, s.w
    item = x.itemsize
    out = math.prod(s.out)
    outer, inner = (math.prod(x.shape), x.shape) if s.transposed else (out, s.out)
    window = math.prod(w.shape[2:])
    rows = outer / max(1, inner[1] if len(inner) > 1 else 1)
    wide = w.shape[0] / s.groups if w.shape else 1.0
    deep = (w.shape[1] if len(w.shape) > 1 else 1) * window
    flops = 2 * outer * deep
    if s.mask == BIAS:
        return (rows, wide, 1.0), Work(flops=out, bytes=out * item), 0.0
    before = x.numel / max(1, x.shape[1] if len(x.shape) > 1 else 1)
    kinds = {INPUT: (before, deep / max(1, window), wide * window), FILTER: (wide, deep, rows)}
    sizes = kinds.get(s.mask & (INPUT | FILTER), (rows, wide, deep))
    times = max(1, bool(s.mask & INPUT) + bool(s.mask & FILTER))
    once = item * (x.numel + w.numel + out)
    depthwise = _is_depthwise(s)
    tf32 = x.dtype == "float32" and context.tf32
    # Tensor Cores take channels-last tensors: others are converted first, and the result after.
    converts = not channels_last(x) and window > 1 and not depthwise and (tf32 or item == 2)
    layout_bytes = 2.0 * once * times if converts else 0.0
    rate = "tf32" if tf32 else x.dtype
    if depthwise:
        rate = "float32"  # one channel per group leaves nothing for Tensor Cores
    bias = 2 * out * item if s.biased else 0
    work = Work(times * flops, times * once + bias + layout_bytes, rate)
    return sizes, work, layout_bytes


# Cases to measure


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
    """1 for sequences, 2 for images, 3 for volumes."""
    transposed: bool = False
    biased: bool | None = None
    """None where such layers come both with and without a bias."""
    dilation: int = 1

    @property
    def out_side(self) -> int:
        """Pixels along an edge of the output."""
        if self.transposed:
            return (self.side - 1) * self.stride - 2 * self.padding + self.kernel
        return (self.side + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1

    @property
    def weight(self) -> Shape:
        """Shape of the weights."""
        first, second = (self.inner, self.outer) if self.transposed else (self.outer, self.inner)
        return (first, second // self.groups, *(self.kernel,) * self.dims)


class Layouts(NamedTuple):
    """Whether each tensor is channels-last."""

    input: bool
    weight: bool
    gradient: bool


def conv_case(draw: Draw, layer: Layer) -> Case:
    """A call of a layer to measure, forward or backward, with a random batch, dtype and layouts."""
    layer = _shrunk(layer, draw.most)
    dtype = draw.weighted({"bfloat16": 5, "float32": 5, "float16": 1} if draw.kind == "cuda" else {"float32": 1})
    largest = max(layer.inner * layer.side**layer.dims, layer.outer * layer.out_side**layer.dims)
    batch = draw.size(1, max(1, min(256, draw.most // largest)))
    layouts = _layouts(draw)
    x = _images(dtype, (batch, layer.inner, *(layer.side,) * layer.dims), layouts.input)
    weight = _images(dtype, layer.weight, layouts.weight)
    biased = draw.chance(0.3) if layer.biased is None else layer.biased
    window: tuple[Value, ...] = (
        [layer.stride] * layer.dims, [layer.padding] * layer.dims, [layer.dilation] * layer.dims, layer.transposed,
        [0] * layer.dims, layer.groups,
    )  # fmt: skip
    # cuDNN may use TF32 for float32 unless a script forbids it.
    tf32 = dtype == "float32" and draw.chance(0.9)
    if draw.chance(0.45):
        bias = Tensor((layer.outer,), dtype) if biased else None
        return Case(Op("aten::convolution", (x, weight, bias, *window), overload="default"), tf32=tf32)
    grad = _images(dtype, (batch, layer.outer, *(layer.out_side,) * layer.dims), layouts.gradient)
    sizes: list[Value] = [layer.outer if biased else 0]
    args = (grad, x, weight, sizes, *window, _wanted(draw, layer, biased))
    return Case(Op("aten::convolution_backward", args, overload="default"), tf32=tf32)


def _wanted(draw: Draw, layer: Layer, biased: bool) -> list[Value]:
    """The gradients to compute: not of the first layer's input, nor of frozen weights."""
    if layer.inner == 3 or draw.chance(0.08):
        return [False, True, biased]
    return [True, not draw.chance(0.05), biased]


def _layouts(draw: Draw) -> Layouts:
    """Mostly the same for all tensors; norms and views between layers leave mixtures."""
    style = draw.weighted({"first": 10, "last": 5, "activations last": 3, "mixed": 2})
    if style == "mixed":
        return Layouts(draw.chance(0.5), False, draw.chance(0.5))
    return Layouts(style != "first", style == "last", style != "first")


def _images(dtype: str, shape: Shape, last: bool) -> Tensor:
    order = (0, *range(2, len(shape)), 1) if last else None
    return Tensor(shape, dtype, stride=strides(shape, order))


def _shrunk(layer: Layer, most: int) -> Layer:
    """The same layer with fewer channels and a smaller image, where it would be too large."""
    inner, outer, side = layer.inner, layer.outer, layer.side
    while layer.groups == 1 and prod(layer._replace(inner=inner, outer=outer).weight) > most:
        inner, outer = inner if inner == 3 else -(-inner // 2), -(-outer // 2)
    widened = layer.stride if layer.transposed else 1
    while side > layer.kernel and max(inner, outer) * (widened * side) ** layer.dims > most:
        side //= 2
    return layer._replace(inner=inner, outer=outer, side=max(side, layer.kernel))


def draw_channels(draw: Draw, low: int, high: int) -> int:
    """A number of channels, mostly a multiple of a power of two."""
    step = draw.one((1, 8, 8, 16, 32, 64, 64))
    return max(step, draw.whole(low, high) // step * step)


def image_side(draw: Draw) -> int:
    """Edge of an image: halvings of common image sizes, and any other."""
    common = (7, 8, 14, 14, 16, 28, 28, 32, 48, 56, 56, 64, 96, 112)
    return draw.one(common) if draw.chance(0.7) else draw.whole(common[0], common[-1])


def _residual(draw: Draw) -> Layer:
    side, inner = image_side(draw), draw_channels(draw, 16, 1024)
    style = draw.weighted({"1x1": 6, "3x3": 6, "down": 2, "5x5": 1})
    outer = draw.one(
        (inner, inner * 2, inner * 4, max(1, inner // 4), max(1, inner // 2), draw_channels(draw, 16, 1024))
    )
    outer = min(outer, 2048)
    if style == "1x1":
        return Layer(inner, outer, 1, 1, 0, 1, side)
    if style == "down":
        kernel = draw.one((1, 3))
        return Layer(inner, outer, kernel, 2, kernel // 2, 1, side)
    kernel = 3 if style == "3x3" else 5
    return Layer(inner, min(outer, 1024), kernel, draw.one((1, 1, 2)), kernel // 2, 1, side)


def _bottleneck(draw: Draw) -> Layer:
    """A ResNet bottleneck: the smaller the image, the more channels."""
    stage = draw.random.randrange(4)
    width = (
        64 * 2**stage * draw.one((1, 1, 1, 2)) if draw.chance(0.6) else draw_channels(draw, 32 << stage, 160 << stage)
    )
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
    side, outer = draw.one((128, 160, 192, 224, 224, 256, 299)), draw_channels(draw, 16, 128)
    kernel, stride, padding = draw.one(((7, 2, 3), (3, 2, 1), (3, 1, 1), (4, 4, 0)))
    return Layer(3, outer, kernel, stride, padding, 1, side)


def _patches(draw: Draw) -> Layer:
    kernel = draw.one((4, 8, 14, 16, 16, 32))
    outer = draw.size(64, 256) if kernel < 14 else draw.size(192, 1280)
    return Layer(3, outer, kernel, kernel, 0, 1, kernel * draw.whole(8, 20 if kernel >= 14 else 64), biased=True)


def _depthwise(draw: Draw) -> Layer:
    kernel, channels = draw.one((3, 3, 3, 5, 7, 7)), draw_channels(draw, 16, 1152)
    side = max(kernel, image_side(draw))
    # Seven wide is ConvNeXt's, which has biases and never skips; the narrow ones come with a batch norm.
    stride = 1 if kernel == 7 else draw.one((1, 1, 1, 2))
    return Layer(channels, channels, kernel, stride, kernel // 2, channels, side, biased=kernel == 7)


def _pointwise(draw: Draw) -> Layer:
    """The narrow and wide ends of an inverted residual."""
    narrow = draw_channels(draw, 8, 320)
    wide = narrow * draw.one((1, 2, 3, 4, 6, 6))
    inner, outer = (narrow, wide) if draw.chance(0.5) else (wide, narrow)
    return Layer(inner, outer, 1, 1, 0, 1, image_side(draw), biased=False)


def _squeeze(draw: Draw) -> Layer:
    """Squeeze and excitation: an image of one pixel."""
    wide, narrow = draw_channels(draw, 32, 1536), draw_channels(draw, 8, 96)
    inner, outer = (narrow, wide) if draw.chance(0.5) else (wide, narrow)
    return Layer(inner, outer, 1, 1, 0, 1, 1, biased=True)


def _downsample(draw: Draw) -> Layer:
    channels = draw_channels(draw, 32, 768)
    return Layer(channels, 2 * channels, 2, 2, 0, 1, image_side(draw) // 2 * 2)


def _segmenting(draw: Draw) -> Layer:
    """A level of a U-Net: large images, concatenated channels, a bias."""
    level = draw.random.randrange(5)
    width, side = draw_channels(draw, 16 << level, 80 << level), max(3, draw.whole(128, 320) >> level)
    return Layer(min(2048, width * draw.one((1, 1, 2))), min(1024, width), draw.one((1, 3, 3, 3)), 1, 1, 1, side)


def _upward(draw: Draw) -> Layer:
    inner, side = draw_channels(draw, 16, 1024), draw.whole(4, 96)
    kernel, padding = draw.one(((2, 0), (2, 0), (4, 1), (3, 1)))
    return Layer(inner, max(1, inner // draw.one((1, 2, 2, 4))), kernel, 2, padding, 1, side, transposed=True)


def _sequence(draw: Draw) -> Layer:
    channels = draw_channels(draw, 32, 1280)
    kernel = draw.one((1, 2, 3, 3, 4, 5, 10))
    inner = draw.one((channels, channels, draw_channels(draw, 32, 1280), 80))
    groups = channels if inner == channels and kernel > 2 and draw.chance(0.3) else 1
    return Layer(inner, channels, kernel, draw.one((1, 1, 2)), kernel // 2, groups, draw.whole(32, 16384), dims=1)


def _volume(draw: Draw) -> Layer:
    inner, kernel = draw.one((3, draw_channels(draw, 8, 256), draw_channels(draw, 8, 256))), draw.one((1, 3, 3))
    return Layer(
        inner, draw_channels(draw, 8, 256), kernel, draw.one((1, 1, 2)), kernel // 2, 1, draw.whole(4, 64), dims=3
    )


_LAYERS: dict[Callable[[Draw], Layer], int] = {
    _bottleneck: 9,
    _residual: 5,
    _stem: 2,
    _patches: 2,
    _depthwise: 7,
    _pointwise: 5,
    _squeeze: 1,
    _downsample: 2,
    _segmenting: 3,
    _upward: 1,
    _sequence: 2,
    _volume: 1,
}
