"""Losses and their gradients: element-wise passes with a reduction, and picking the target's class."""

from __future__ import annotations

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import (
    alignment,
    dtype_code,
    integer,
    is_dense,
    log,
    per,
    ragged,
    tensors_of,
)
from foretrace.graph import Op

PICKING = ("aten::nll_loss_forward", "aten::nll_loss_backward", "aten::nll_loss2d_forward", "aten::nll_loss2d_backward")
REDUCTION = {"aten::nll_loss_forward": 3, "aten::nll_loss_backward": 4, "aten::nll_loss2d_forward": 3,
             "aten::nll_loss2d_backward": 4, "aten::binary_cross_entropy_with_logits": 4,
             "aten::binary_cross_entropy": 3, "aten::binary_cross_entropy_backward": 4, "aten::mse_loss": 2,
             "aten::mse_loss_backward": 3, "aten::smooth_l1_loss": 2, "aten::smooth_l1_loss_backward": 3,
             "aten::huber_loss": 2, "aten::huber_loss_backward": 3, "aten::kl_div": 2,
             "aten::soft_margin_loss": 2}  # fmt: skip
"""Losses, and where each is told how to reduce."""
NONE, MEAN, SUM = range(3)
BLOCK = 512
PASSES = {"aten::binary_cross_entropy_with_logits": 13, "aten::binary_cross_entropy_backward": 5, "aten::mse_loss": 4,
          "aten::smooth_l1_loss": 4, "aten::huber_loss": 4, "aten::binary_cross_entropy": 4}  # fmt: skip
"""Tensors read and written by all kernels of a call; elsewhere each is once."""
SECTOR = 32


class Losses(Family):
    """Predictions and targets in, a number or its gradient out."""

    name = "losses"
    ops = tuple(REDUCTION)
    columns = ("op", "dtype", "target_dtype", "bytes", "numel", "rows", "classes", "reduction", "tensors", "dense",
               "aligned", "waves", "ragged", "roof", "inside")  # fmt: skip

    def takes(self, op: Op) -> bool:
        """Calls whose tensors are known."""
        return len(tensors_of(op)) > 1

    def describe(self, op: Op, facts: Facts) -> Described:
        """Sizes, and whether one number or one per element comes out."""
        tensors = tensors_of(op)
        scores = max(tensors, key=lambda t: t.numel)
        backward = "backward" in op.name
        picking = op.name in PICKING
        reduction = integer(op, REDUCTION[op.name], "reduction", MEAN)
        dims = len(scores.shape)
        classes = scores.shape[1 if dims > 1 else 0] if picking and dims else 1
        rows = scores.numel / max(1, classes)
        targets = tensors[min(2 if backward else 1, len(tensors) - 1)]
        if picking:
            # One block picks all rows, forward; all scores are cleared first, backward.
            moved = scores.nbytes if backward else 0
            work = Work(bytes=moved + 2 * SECTOR * rows, trips=2 + 2 * per(rows, 2 * BLOCK) if dims <= 2 else 2)
        else:
            passes = PASSES.get(op.name, len(tensors) + 1) * scores.nbytes
            work = Work(flops=8 * scores.numel, bytes=passes)
        waves = scores.numel / (4 * BLOCK * facts.device.sms)
        features = [
            PLACE[op.name], dtype_code(scores.dtype), dtype_code(targets.dtype), log(scores.nbytes), log(scores.numel),
            log(rows), log(classes), reduction, len(tensors), all(is_dense(t) for t in tensors),
            alignment(scores.numel), log(64 * waves), ragged(waves), log(64 * work.us(facts.device)),
            log(targets.numel / max(1, targets.shape[0] if targets.shape else 1)),
        ]  # fmt: skip
        return Described(features, work)


PLACE = {name: place for place, name in enumerate(Losses.ops)}
