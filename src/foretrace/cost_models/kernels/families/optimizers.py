"""Updates of many tensors in few kernels: how many tensors, how large, how they split into launches."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import alignment, dtype_code, is_dense, log, per, ragged, tensors_of
from foretrace.graph import Op, Tensor

CHUNK = 65536
"""Elements that one block of PyTorch's multi-tensor kernels takes."""
BLOCKS = 320
"""Blocks that one launch of them holds."""
TENSORS = (110, 64, 48, 36, 30)
"""Tensors that one launch holds, by number of lists."""
OUT_OF_PLACE = tuple(f"aten::_foreach_{name}" for name in (
    "mul", "add", "sqrt", "div", "sub", "neg", "exp", "reciprocal", "norm", "maximum", "rsqrt", "abs", "pow", "lerp",
    "addcmul", "addcdiv", "clamp_max", "clamp_min", "max", "minimum", "log", "sign", "sigmoid", "tanh"))  # fmt: skip
IN_PLACE = tuple(f"{name}_" for name in OUT_OF_PLACE if not name.endswith(("norm", "_max")))
OF_A_NUMBER = ("aten::_foreach_mul_", "aten::_foreach_mul", "aten::_foreach_div_", "aten::_foreach_div",
               "aten::_foreach_add_", "aten::_foreach_add")  # fmt: skip
FUSED = ("aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_", "aten::_fused_adagrad_")
OTHERS = ("aten::_foreach_zero_", "aten::_foreach_copy_", "aten::_amp_foreach_non_finite_check_and_unscale_")


class Optimizers(Family):
    """foreach and fused updates."""

    name = "optimizers"
    ops = (*OUT_OF_PLACE, *IN_PLACE, *FUSED, *OTHERS)
    columns = ("op", "lists", "tensors", "bytes", "numel", "dtype", "mixed", "chunks", "launches", "largest", "small",
               "scalars", "slow", "chunks_a_launch", "waves", "unaligned", "median", "ragged", "roof",
               "busiest")  # fmt: skip

    def takes(self, op: Op) -> bool:
        """Calls that name a list of tensors."""
        return any(isinstance(a, (list, tuple)) and any(isinstance(t, Tensor) for t in a) for a in op.args)

    def describe(self, op: Op, facts: Facts) -> Described:
        """Chunks and launches, as PyTorch packs them."""
        lists = _lists(op)
        first = lists[0]
        sizes = [t.numel for t in first]
        made = op.name in OUT_OF_PLACE and not op.name.endswith(("norm", "_max"))
        chunks = sum(per(n, CHUNK) for n in sizes)
        scalars = [a for a in (*op.args, *op.kwargs.values()) if isinstance(a, Tensor) and not a.shape]
        slow = len({t.dtype for t in first}) > 1 or not all(is_dense(t) for t in first)
        if op.name in OF_A_NUMBER and any(t.dtype != first[0].dtype for t in scalars):
            slow = True  # PyTorch has no fast kernel that converts a number on the device
        launches = len(first) if slow else launches_of(sizes, len(lists) + made)
        numel = sum(sizes)
        moved = numel * (sum(group[0].itemsize for group in lists) + _written(op, lists, made) * first[0].itemsize)
        # A block takes a chunk alone: few chunks leave processors idle.
        busy = min(1.0, max(1, chunks) / max(1, launches) / facts.device.sms)
        work = Work(flops=4 * numel, bytes=moved, trips=2 * launches)
        waves = chunks / max(1, launches) / facts.device.sms
        features = [
            PLACE[op.name], len(lists), log(len(first)), log(moved), log(numel), dtype_code(first[0].dtype),
            len({group[0].dtype for group in lists}) > 1, log(chunks), launches, log(max(sizes)),
            log(sum(n < CHUNK for n in sizes)), len(scalars), slow, log(chunks / max(1, launches)), waves,
            sum(alignment(n) < 4 for n in sizes) / len(sizes), log(sorted(sizes)[len(sizes) // 2]), ragged(waves),
            log(64 * work.us(facts.device)), log(64 * moved / max(1, launches) / busy / 1e6),
        ]  # fmt: skip
        return Described(features, work)


PLACE = {name: place for place, name in enumerate(Optimizers.ops)}


def launches_of(sizes: Sequence[int], lists: int) -> int:
    """Kernels that tensors of these sizes take: a launch is full when its tensors or its blocks are.

    >>> launches_of([1000] * 111, lists=1), launches_of([65536 * 321], lists=1)
    (2, 2)
    """
    most = TENSORS[min(lists, len(TENSORS)) - 1]
    launches = tensors = blocks = 0
    for size in sizes:
        chunks = per(size, CHUNK)
        tensors += 1
        if blocks + chunks >= BLOCKS:
            full, blocks = divmod(blocks + chunks, BLOCKS)
            launches, tensors = launches + full, 1 if blocks else 0
        else:
            blocks += chunks
        if tensors == most and blocks:
            launches, blocks, tensors = launches + 1, 0, 0
    return launches + (blocks > 0)


def _lists(op: Op) -> list[list[Tensor]]:
    """The lists of tensors that are walked over together; steps and other single numbers are none."""
    lists = [[t for t in a if isinstance(t, Tensor)] for a in op.args if isinstance(a, (list, tuple))]
    walked = [group for group in lists if group and (group is lists[0] or any(t.shape for t in group))]
    return walked or [tensors_of(op)]


def _written(op: Op, lists: list[list[Tensor]], made: bool) -> int:
    """Lists that are written."""
    if op.name in FUSED:
        return max(1, len(lists) - 1)
    return 1 if made or op.name not in OUT_OF_PLACE else 0
