"""Layer, batch, group and RMS norm, forward and backward: blocks per row or channel, and how long each one works."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    bits,
    channels_last,
    dtype_code,
    integer,
    is_dense,
    log,
    per,
    ragged,
    tensors_of,
    whole,
)  # fmt: skip
from foretrace.graph import Op, Tensor

BY_ROW = ("aten::native_layer_norm", "aten::_fused_rms_norm", "aten::native_layer_norm_backward",
          "aten::_fused_rms_norm_backward")  # fmt: skip
BY_GROUP = ("aten::native_group_norm", "aten::native_group_norm_backward")
BY_CHANNEL = ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::native_batch_norm_backward",
              "aten::cudnn_batch_norm_backward", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update",
              "aten::batch_norm_backward", "aten::miopen_batch_norm", "aten::miopen_batch_norm_backward",
              "aten::_native_batch_norm_legit_no_training", "aten::_native_batch_norm_legit_functional")  # fmt: skip
WARP, ROW_THREADS, BLOCK = 32, 128, 512
RESIDENT, RESIDENT_BLOCKS = 2048, 32
"""Threads and blocks that a processor holds at once."""
ROW_EACH, COLUMN_ROWS = 1024, 256
"""Elements of a row, and rows of a column, that a block has under way at once."""
EACH, MOST_BLOCKS = 16, 128
"""Elements of a thread, and blocks beside each other, where channels are innermost."""
TOGETHER = 8
"""Blocks below which sharing a sum is not worth it."""
TALL = 64 * 1024
"""Rows from which on weights' gradients of few columns take a second kernel."""


class Norms(Family):
    """Every element less a mean, over a deviation."""

    name = "norms"
    ops = (*BY_ROW, *BY_GROUP, *BY_CHANNEL)
    columns = ("op", "dtype", "weight_dtype", "weights", "bytes", "groups", "length", "inside", "length_aligned",
               "inside_aligned", "channels_last", "dense", "other_dense", "batch", "channels", "mask", "training",
               "waves", "ragged", "row_waves", "row_ragged", "each", "length_bytes", "column_blocks", "column_depth",
               "column_ragged", "tall", "last_blocks", "last_depth", "total", "filled", "trips", "roof")  # fmt: skip

    def describe(self, op: Op, facts: Facts) -> Described:
        """Independent groups, elements in each, and the blocks that share them."""
        tensors = tensors_of(op)
        source = tensors[0]
        backward = "backward" in op.name
        other = tensors[1] if backward and len(tensors) > 1 else source
        sms = facts.device.sms
        numel, item = source.numel, source.itemsize
        groups, inside = _groups(op, source, backward)
        length = numel / max(1, groups)
        weights = [t for t in tensors if len(t.shape) == 1 and t.numel > 1]
        mask = next((a for a in reversed(op.args) if isinstance(a, (list, tuple))), ())
        channels = source.shape[1] if len(source.shape) > 1 else 1
        last = channels_last(source)
        waves = groups / sms
        row_waves = groups * ROW_THREADS / (sms * RESIDENT)
        columns = per(length, WARP) / (2 * sms) if op.name in BY_ROW else 0.0
        beside, deep = _channels_innermost(channels, numel // max(1, channels), backward) if last else (0, 0.0)
        passes = sum(t.nbytes for t in tensors if t.numel == numel) + numel * item
        if op.name in BY_ROW:
            # Rows that do not lie side by side are first copied so that they do.
            passes += sum(2 * t.nbytes for t in tensors if t.numel == numel and not is_dense(t))
        tall = groups > TALL and columns < 1 / 4
        if op.name in BY_ROW:
            deep = groups / (COLUMN_ROWS * (MOST_BLOCKS if tall else 1)) if backward else 0.0
            chain = math.ceil(row_waves) * (3 + length / ROW_EACH) + deep
        elif last:
            chain = 8 + deep / 4
        else:
            planes = op.name == "aten::native_group_norm_backward"
            blocks, summed = (numel / max(1, inside), inside) if planes else (groups, length)
            threads = BLOCK if summed >= BLOCK else WARP
            resident = min(RESIDENT_BLOCKS, RESIDENT // threads)
            chain = math.ceil(blocks / (resident * sms)) * (2 if backward else 1) * (1 + summed / (2 * threads)) + 2
        work = Work(flops=8 * numel, bytes=passes, trips=chain)
        features = [
            PLACE[op.name], dtype_code(source.dtype), dtype_code(weights[0].dtype) if weights else -1,
            len(weights), log(numel * item), log(groups), log(length), log(inside), alignment(int(length)),
            alignment(int(inside)), last, is_dense(source), is_dense(other),
            log(source.shape[0] if source.shape else 1), log(channels),
            bits(mask) if backward else -1, any(a is True for a in op.args), log(waves), ragged(waves), log(row_waves),
            ragged(row_waves), log(length / BLOCK), log(length * item), log(columns * 2 * sms), log(groups / WARP),
            ragged(columns), tall, log(beside), log(deep), log(numel),
            per(inside, BLOCK) * BLOCK / max(1, inside), log(chain), log(64 * work.us(facts.device)),
        ]  # fmt: skip
        return Described(features, work)


PLACE = {name: place for place, name in enumerate(Norms.ops)}


def _groups(op: Op, source: Tensor, backward: bool) -> tuple[float, float]:
    """Groups that share a mean, and elements side by side within one."""
    plane = math.prod(source.shape[2:])
    if op.name in BY_ROW:
        shape = whole(argument(op, 2 if backward else 1, "normalized_shape"))
        length = math.prod(shape or source.shape[-1:])
        return source.numel / max(1, length), length
    if op.name in BY_GROUP:
        return (source.shape[0] if source.shape else 1) * integer(op, 8 if backward else 6, "group", 1), plane
    return source.shape[1] if len(source.shape) > 1 else source.numel, plane


def _channels_innermost(channels: int, samples: int, backward: bool) -> tuple[int, float]:
    """Blocks, and elements a thread sums up, as PyTorch cuts them where channels are innermost."""
    width = _power_below(min(channels, WARP))
    height = min(_power_below(per(samples, EACH)), BLOCK // width)
    if width * height != BLOCK:
        width = min(_power_below(channels), BLOCK // height)
    beside = max(1, min(per(samples, height * EACH), MOST_BLOCKS))
    if backward and beside < TOGETHER:
        beside = 1
    return per(channels, width) * beside, samples / (height * beside)


def _power_below(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)
