"""Losses, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.graph import Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw

MEAN = 1
"""PyTorch's number for the reduction to a mean."""
IGNORED = -100


def draw(draw: Draw) -> Case:
    """A loss, or the gradient of one.

    >>> "loss" in draw(Draw("0", most=4096, kind="cpu")).op.name or True
    True
    """
    return Case(draw.weighted(_KINDS)(draw))


def _likelihood(draw: Draw) -> Op:
    low = min(20_000, draw.most) if draw.chance(0.4) else 2  # the words of a language model, or any classes
    classes = draw.whole(low, min(160_000, draw.most))
    rows = draw.size(1, max(1, min(65536, 2 * draw.most // classes)))
    scores, target = Tensor((rows, classes), draw.weighted({"float32": 3, "bfloat16": 1})), Tensor((rows,), "int64")
    if draw.chance(0.5):
        return Op("aten::nll_loss_forward", (scores, target, None, MEAN, IGNORED), overload="default")
    number = Tensor((), scores.dtype)
    return Op("aten::nll_loss_backward", (number, scores, target, None, MEAN, IGNORED, number), overload="default")


def _pixels(draw: Draw) -> Op:
    """The class of each pixel."""
    classes, side = draw.whole(2, 64), draw.whole(8, 512)
    side = min(side, max(1, int((draw.most // classes) ** 0.5)))
    batch = draw.whole(1, max(1, min(64, draw.most // (classes * side * side))))
    scores, target = Tensor((batch, classes, side, side), "float32"), Tensor((batch, side, side), "int64")
    if draw.chance(0.5):
        return Op("aten::nll_loss2d_forward", (scores, target, None, MEAN, IGNORED), overload="default")
    number = Tensor((), "float32")
    return Op("aten::nll_loss2d_backward", (number, scores, target, None, MEAN, IGNORED, number), overload="default")


def _binary(draw: Draw) -> Op:
    shape = draw.shape(2, low=16)
    if draw.chance(0.5):
        shape = (shape[0] * shape[1], 1)
    scores, target = Tensor(shape, "float32"), Tensor(shape, "float32")
    if draw.chance(0.6):
        return Op("aten::binary_cross_entropy_with_logits", (scores, target), overload="default")
    if draw.chance(0.5):
        return Op("aten::binary_cross_entropy", (scores, target), overload="default")
    return Op("aten::binary_cross_entropy_backward", (Tensor((), "float32"), scores, target), overload="default")


def _squares(draw: Draw) -> Op:
    scores = draw.activation()
    name = draw.one(("mse_loss", "smooth_l1_loss"))
    if draw.chance(0.5):
        return Op(f"aten::{name}", (scores, scores), overload="default")
    rest = (MEAN,) if name == "mse_loss" else (MEAN, 1.0)
    return Op(f"aten::{name}_backward", (Tensor((), scores.dtype), scores, scores, *rest), overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {_likelihood: 6, _binary: 3, _squares: 2, _pixels: 1}
