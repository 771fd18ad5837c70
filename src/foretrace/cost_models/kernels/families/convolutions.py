"""Convolutions, forward and both gradients: as matrix products, and by the layouts that libraries turn them into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from foretrace.cost_models.kernels.families.reductions import RESIDENT, plan
from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    bits,
    channels_last,
    dense,
    dtype_code,
    flag,
    integer,
    integers,
    log,
    per,
    ragged,
    tensors_of,
)  # fmt: skip
from foretrace.cost_models.kernels.kernel_names import Kernel, engine
from foretrace.graph import Op, Tensor, Value

FORWARD = ("aten::convolution", "aten::_convolution", "aten::cudnn_convolution", "aten::convolution_overrideable")
BACKWARD = "aten::convolution_backward"
MASK = 10
"""Position of the argument that says which gradients a backward call is to make."""
TILES = ((64, 64), (128, 64), (128, 128), (256, 128))
TAP = 128
"""Channels to a side of the tiles that a filter's gradient is made in, pixel by pixel of the window."""
INPUT, FILTER, BIAS = 1, 2, 4
"""Gradients that a backward call may be asked for, as bits of its mask."""
SUMMED = ("sum_along", "sum_wide", "sum_width", "sum_height", "sum_blocks", "sum_split", "sum_each", "sum_ragged")
"""Columns that say how a bias's gradient is summed up."""
TF32 = 10
"""Code of float32 on the matrix units, beside those of dtypes."""


class Shapes(NamedTuple):
    """A convolution's tensors and numbers."""

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
    """Gradients wanted; 0 forward."""
    after: bool = False
    """Whether another gradient of the same call was made just before, from the same tensors."""


class Convolutions(Family):
    """Windows times filters."""

    name = "convolutions"
    ops = (*FORWARD, BACKWARD)
    columns = ("op", "dtype", "dims", "batch", "inputs", "outputs", "in_plane", "out_plane", "window", "step",
               "padding", "dilation", "groups", "transposed", "channels_last", "filter_last", "biased", "mask",
               "flops", "bytes", "roof", "inputs_aligned", "outputs_aligned", "group_inputs", "group_outputs",
               "height", "width", "width_aligned", "intensity", "m", "n", "k", "turned",
               *(f"waves_{a}x{b}" for a, b in TILES), *(f"ragged_{a}x{b}" for a, b in TILES), "deepest",
               "innermost", "filter_says", "grad_says", "copied_x", "copied_filter", "copied_grad",
               "copied", "after", "taps", "ragged_taps", *SUMMED, "processors")  # fmt: skip
    sides = ("groups", "m", "n", "k", "processors")

    def takes(self, op: Op) -> bool:
        """Calls whose tensors are known."""
        later = 1 if op.name == BACKWARD else 0
        tensors = tensors_of(op)[later : later + 2]
        return len(tensors) == 2 and len(tensors[0].shape) == len(tensors[1].shape) > 2

    def describe(self, op: Op, facts: Facts) -> Described:
        """Sizes, layouts, and the tiles of the equivalent product."""
        s = _shapes(op)
        x, w, out = s.x, s.w, s.out
        product, work, turned = _product(s, facts)
        m, n, k = product
        sms = facts.device.sms
        tiles = [per(m, a) * per(n, b) * s.groups / sms for a, b in TILES]
        tf32 = x.dtype == "float32" and facts.tf32
        inputs = x.shape[1] if len(x.shape) > 1 else 1
        outputs = out[1] if len(out) > 1 else 1
        window = math.prod(w.shape[2:])
        taps = window * per(outputs / s.groups, TAP) * per(inputs / s.groups, TAP) * s.groups / sms
        features = [
            _kind(s), TF32 if tf32 else dtype_code(x.dtype), len(x.shape), log(x.shape[0]), log(inputs),
            log(outputs), log(math.prod(x.shape[2:])), log(math.prod(out[2:])), window, s.stride[0],
            s.padding[0], s.dilation[0], log(s.groups), s.transposed, channels_last(x), channels_last(w), s.biased,
            s.mask, log(work.flops), log(work.bytes), log(64 * work.us(facts.device)), alignment(inputs),
            alignment(outputs), log(inputs // max(1, s.groups)), log(outputs // max(1, s.groups)),
            x.shape[2] if len(x.shape) > 3 else 1, x.shape[-1], alignment(x.shape[-1]),
            log(64 * work.flops / max(1.0, work.bytes)), log(m), log(n), log(k), log(turned),
            *(log(64 * t) for t in tiles), *(ragged(t) for t in tiles),
            log(k / 64 / max(1.0, sms / max(1.0, tiles[2] * sms))), *_copied(s, op), s.after, log(64 * taps),
            ragged(taps), *_summed(s, tensors_of(op)[0], sms), sms,
        ]  # fmt: skip
        return Described(features, work)

    def kernel(self, kernels: Sequence[str]) -> Kernel:
        """The kernel that convolved."""
        return engine(kernels)


def _copied(s: Shapes, op: Op) -> tuple[float, ...]:
    """Whether channels are innermost for the library, by what the filter and the gradient say; and what that copies.

    PyTorch hands all tensors over with the channels innermost where the image or the filter lies so, else none, and
    copies those that lie otherwise.
    """
    given = [s.x, s.w, *([tensors_of(op)[0]] if op.name == BACKWARD else [])]
    says = [_says_last(tensor) for tensor in given]
    last = says[0] or says[1]
    copied = [0.0 if _lies(tensor, last) else log(tensor.nbytes) for tensor in given]
    grad_says, copied_grad = (says[2], copied[2]) if len(given) > 2 else (False, 0.0)
    return last, says[1], grad_says, copied[0], copied[1], copied_grad, max(copied)


def _says_last(tensor: Tensor) -> bool:
    """Whether PyTorch reads from the strides that channels are innermost; of those that could mean both, it does not.

    >>> _says_last(Tensor((8, 4, 1, 1), "int8", stride=(4, 1, 4, 4))), _says_last(Tensor((8, 4, 1, 1), "int8"))
    (True, False)
    """
    shape, stride = tensor.shape, tensor.stride
    if stride is None or len(shape) not in (4, 5) or len(stride) != len(shape) or stride[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if stride[dim] < least or (dim == 0 and least == stride[1]):
            return False
        least = stride[dim] * max(1, shape[dim])
    return True


def _lies(tensor: Tensor, last: bool) -> bool:
    """Whether a tensor is dense with its channels innermost, or outermost.

    >>> _lies(Tensor((8, 4, 1, 1), "int8"), last=True), _lies(Tensor((8, 4, 2, 2), "int8"), last=True)
    (True, False)
    """
    shape = tensor.shape
    stride = tensor.stride if tensor.stride is not None and len(tensor.stride) == len(shape) else dense(shape)
    step = 1
    for dim in (1, *range(len(shape) - 1, 1, -1), 0) if last else range(len(shape) - 1, -1, -1):
        if shape[dim] != 1 and stride[dim] != step:
            return False
        step *= shape[dim]
    return True


def gradients(op: Op) -> list[Value]:
    """Which gradients a backward call makes: of its input, its filter, its bias; None for one that was made before.

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
    stride = integers(op, 3 + later, "stride", planes, 1)
    padding = integers(op, 4 + later, "padding", planes, 0)
    dilation = integers(op, 5 + later, "dilation", planes, 1)
    groups = max(1, integer(op, 8 + later, "groups", 1))
    transposed = flag(op, 6 + later, "transposed")
    if later:
        wanted, shape = gradients(op), tensors[0].shape
        after = any(each is None for each in wanted)
        return Shapes(x, w, shape, stride, padding, dilation, groups, transposed, False, bits(wanted), after)
    more = integers(op, 7, "output_padding", planes, 0)
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


def _alone(s: Shapes) -> bool:
    """Whether each channel has a filter of its own."""
    return s.groups > 1 and s.groups == (s.x.shape[1] if len(s.x.shape) > 1 else 1)


def _kind(s: Shapes) -> int:
    """A code for what is computed, and by which kind of kernel: forward, gradients, of channels together or alone."""
    return 2 * s.mask + (_alone(s) and s.mask != BIAS)


def _summed(s: Shapes, grad: Tensor, sms: int) -> list[float]:
    """How PyTorch sums up the gradient of a bias; all nothing for the rest."""
    if s.mask != BIAS:
        return [0.0] * len(SUMMED)
    cut = plan(grad, {0, *range(2, len(grad.shape))}, sms)
    blocks, threads = cut.blocks * cut.split, cut.width * cut.height
    waves = blocks * threads / (sms * RESIDENT)
    sizes = (cut.width, cut.height, blocks, cut.split, cut.each)
    return [cut.along, cut.wide, *map(log, sizes), ragged(waves)]


def _product(s: Shapes, facts: Facts) -> tuple[tuple[float, float, float], Work, float]:
    """The equivalent product of a group, its roofline, and bytes moved to change layouts."""
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
    product = kinds.get(s.mask & (INPUT | FILTER), (rows, wide, deep))
    times = max(1, bool(s.mask & INPUT) + bool(s.mask & FILTER))
    once = item * (x.numel + w.numel + out)
    alone = _alone(s)
    tf32 = x.dtype == "float32" and facts.tf32
    # Matrix units want channels innermost: what lies otherwise is turned around first, and the result after.
    turns = not channels_last(x) and window > 1 and not alone and (tf32 or item == 2)
    turned = 2.0 * once * times if turns else 0.0
    rate = "tf32" if tf32 else x.dtype
    if alone:
        rate = "float32"  # one channel a group leaves nothing for the matrix units
    bias = 2 * out * item if s.biased else 0
    work = Work(times * flops, times * once + bias + turned, rate)
    return product, work, turned
