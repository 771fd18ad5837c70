"""Layer, batch, group and root-mean-square norms, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, strides

EPSILON = 1e-5
ALL: list[Value] = [True, True, True]
"""The gradients of input, weight and bias are all wanted."""


def draw(draw: Draw) -> Case:
    """A norm, or the gradient of one.

    >>> "norm" in draw(Draw("0", most=4096, kind="cpu")).op.name
    True
    """
    return Case(draw.weighted(_KINDS)(draw))


def _rows(draw: Draw) -> tuple[tuple[int, ...], int]:
    width = draw.size(16, min(16384, draw.most))
    rows = draw.size(1, max(1, min(131072, draw.most // width)))
    if draw.chance(0.7):
        batch = draw.whole(1, rows)
        return (batch, max(1, rows // batch), width), width
    return (rows, width), width


def _turned(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Mostly dense; where an image became a row of pixels, the channels lie apart."""
    if len(shape) < 3 or draw.chance(0.8):
        return None
    return strides(shape, draw.one(((0, 2, 1), (1, 0, 2))))


def _layer(draw: Draw) -> Op:
    shape, width = _rows(draw)
    dtype = draw.dtype()
    # Under autocast the input is wide and so are the weights; in a model cast whole they are all narrow.
    x, weight = Tensor(shape, dtype, stride=_turned(draw, shape)), Tensor((width,), dtype)
    if draw.chance(0.45):
        return Op("aten::native_layer_norm", (x, [width], weight, weight, EPSILON), overload="default")
    statistics = Tensor((*shape[:-1], 1), "float32" if draw.kind == "cuda" else dtype)
    grad = Tensor(shape, dtype, stride=_turned(draw, shape))
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
    # PyTorch takes cuDNN's where it can, which is not for bfloat16.
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
    x, weight = Tensor(x.shape, dtype), Tensor((channels,), dtype)  # channels that lie innermost are moved before
    sizes = (batch, channels, height * width, groups)
    if draw.chance(0.45):
        return Op("aten::native_group_norm", (x, weight, weight, *sizes, EPSILON), overload="default")
    statistics = Tensor((batch, groups), dtype)
    args = (x, x, statistics, statistics, weight, *sizes, ALL)
    return Op("aten::native_group_norm_backward", args, overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {_layer: 8, _batch: 8, _group: 2, _root_mean_square: 3}
