"""Losses and their gradients: elementwise passes with a reduction, and gathers of the target's class."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    SECTOR,
    alignment,
    ceil_div,
    dtype_code,
    int_argument,
    log,
    tensors_of,
    wave_quantization,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor
from foretrace.graph.op import is_contiguous
from foretrace.platform.measurements.cases import Case, Draw

NLL = ("aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward", "aten::nll_loss2d_backward")
REDUCTION = {"aten::nll_loss_forward": 3, "aten::nll_loss_backward": 4, "aten::nll_loss2d_forward": 3,
             "aten::nll_loss2d_backward": 4, "aten::binary_cross_entropy_with_logits": 4,
             "aten::binary_cross_entropy": 3, "aten::binary_cross_entropy_backward": 4, "aten::mse_loss": 2,
             "aten::mse_loss_backward": 3, "aten::smooth_l1_loss": 2, "aten::smooth_l1_loss_backward": 3,
             "aten::huber_loss": 2, "aten::huber_loss_backward": 3, "aten::kl_div": 2,
             "aten::soft_margin_loss": 2}  # fmt: skip
"""Losses, and the position of each one's ``reduction``."""
NONE, MEAN, SUM = range(3)
BLOCK = 512
PASSES = {"aten::binary_cross_entropy_with_logits": 13, "aten::binary_cross_entropy_backward": 5, "aten::mse_loss": 4,
          "aten::smooth_l1_loss": 4, "aten::huber_loss": 4, "aten::binary_cross_entropy": 4}  # fmt: skip
"""Tensors read and written by all kernels of a call; in other calls each is once."""


class Losses(Family):
    """NLL, BCE, MSE, L1, Huber and KL losses, forward and backward."""

    name = "losses"
    share = 1
    ops = tuple(REDUCTION)
    columns = ("op", "dtype", "target_dtype", "bytes", "numel", "rows", "classes", "reduction", "tensors", "dense",
               "aligned", "waves", "ragged", "roof", "inside")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Calls whose predictions and targets are known."""
        return len(tensors_of(op)) > 1

    def describe(self, op: Op, context: CallContext) -> Description:
        """Sizes, and the kind of reduction."""
        tensors = tensors_of(op)
        scores = max(tensors, key=lambda t: t.numel)
        backward = "backward" in op.name
        gathers = op.name in NLL
        reduction = int_argument(op, REDUCTION[op.name], "reduction", MEAN)
        dims = len(scores.shape)
        classes = scores.shape[1 if dims > 1 else 0] if gathers and dims else 1
        rows = scores.numel / max(1, classes)
        targets = tensors[min(2 if backward else 1, len(tensors) - 1)]
        if gathers:
            # Forward, one block gathers all rows; backward, all scores are zeroed first.
            moved = scores.nbytes if backward else 0
            work = Work(
                bytes=moved + 2 * SECTOR * rows, round_trips=2 + 2 * ceil_div(rows, 2 * BLOCK) if dims <= 2 else 2
            )
        else:
            passes = PASSES.get(op.name, len(tensors) + 1) * scores.nbytes
            work = Work(flops=8 * scores.numel, bytes=passes)
        waves = scores.numel / (4 * BLOCK * context.device.sms)
        features = [
            self.op_codes[op.name], dtype_code(scores.dtype), dtype_code(targets.dtype), log(scores.nbytes),
            log(scores.numel), log(rows), log(classes), reduction, len(tensors), all(is_contiguous(t) for t in tensors),
            alignment(scores.numel), log(64 * waves), wave_quantization(waves), log(64 * work.us(context.device)),
            log(targets.numel / max(1, targets.shape[0] if targets.shape else 1)),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A random loss, or its gradient."""
        return Case(draw.weighted(_KINDS)(draw))


# Cases to measure

IGNORED = -100


def _likelihood(draw: Draw) -> Op:
    low = min(20_000, draw.most) if draw.chance(0.4) else 2  # the vocabulary of a language model, or any classes
    classes = draw.whole(low, min(160_000, draw.most))
    rows = draw.size(1, max(1, min(65536, 2 * draw.most // classes)))
    scores, target = Tensor((rows, classes), draw.weighted({"float32": 3, "bfloat16": 1})), Tensor((rows,), "int64")
    if draw.chance(0.5):
        return Op("aten::nll_loss_forward", (scores, target, None, MEAN, IGNORED), overload="default")
    number = Tensor((), scores.dtype)
    return Op("aten::nll_loss_backward", (number, scores, target, None, MEAN, IGNORED, number), overload="default")


def _pixels(draw: Draw) -> Op:
    """A class per pixel."""
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
