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
    classes = draw.whole(2, min(160_000, draw.most))
    rows = draw.size(1, max(1, min(65536, draw.most // classes)))
    scores, target = Tensor((rows, classes), draw.weighted({"float32": 3, "bfloat16": 1})), Tensor((rows,), "int64")
    if draw.chance(0.5):
        return Op("aten::nll_loss_forward", (scores, target, None, MEAN, IGNORED), overload="default")
    number = Tensor((), scores.dtype)
    return Op("aten::nll_loss_backward", (number, scores, target, None, MEAN, IGNORED, number), overload="default")


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


_KINDS: dict[Callable[[Draw], Op], int] = {_likelihood: 6, _binary: 3, _squares: 2}
