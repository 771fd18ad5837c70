"""Sums, means, extremes and norms over dimensions: how long a reduction is, and how it is cut into blocks."""

from __future__ import annotations

from foretrace.cost_models.families.family import Described, Facts, Family, Work
from foretrace.cost_models.families.reduce_plan import RESIDENT, plan
from foretrace.cost_models.families.values import (
    alignment,
    argument,
    dtype_argument,
    dtype_code,
    log,
    ragged,
    tensors_of,
    whole,
)  # fmt: skip
from foretrace.graph import Op, Tensor

DIM_SECOND = ("sum", "mean", "amax", "amin", "var", "std", "max", "min", "argmax", "argmin", "any", "all", "prod",
              "logsumexp", "var_mean", "nansum", "count_nonzero", "std_mean", "aminmax", "nanmean",
              "median")  # fmt: skip
DIM_THIRD = ("linalg_vector_norm", "norm")
SECTOR = 32
"""Bytes that memory hands over at least."""


class Reductions(Family):
    """Many numbers in, few out."""

    name = "reductions"
    ops = tuple(f"aten::{name}" for name in (*DIM_SECOND, *DIM_THIRD))
    columns = ("op", "numel", "bytes", "dtype", "out_dtype", "inputs", "outputs", "along", "wide", "width", "height",
               "across", "blocks", "split", "each", "waves", "ragged", "threads", "step", "fetched", "reduced_dims",
               "kept_dims", "inner", "inner_aligned", "second", "offset", "reduced_step", "kept_step", "unit",
               "second_step")  # fmt: skip

    def takes(self, op: Op) -> bool:
        """Not the maximum of two tensors, which shares the name."""
        return op.overload != "other" and bool(op.args) and isinstance(op.args[0], Tensor)

    def describe(self, op: Op, facts: Facts) -> Described:
        """The plan of blocks, and how much of what memory hands over is used."""
        source = tensors_of(op)[0]
        cut = plan(source, reduced_dims(op, source), facts.device.sms)
        numel, item, sms = source.numel, source.itemsize, facts.device.sms
        inputs = 1
        for size, _ in cut.reduced:
            inputs *= size
        outputs = numel / inputs if inputs else 0
        threads = cut.width * cut.height
        blocks = cut.blocks * cut.split
        waves = blocks * threads / (sms * RESIDENT)
        nearest = (cut.reduced if cut.along else cut.kept) or [(1, 1)]
        others = [*nearest[1:], *(cut.kept if cut.along else cut.reduced)]
        bytes_ = numel * item
        features = [
            PLACE[op.name], log(numel), log(bytes_), dtype_code(source.dtype),
            dtype_code(dtype_argument(op, source.dtype)), log(inputs), log(outputs), cut.along, cut.wide, cut.width,
            cut.height, cut.across, log(blocks), log(cut.split), log(cut.each), log(waves), ragged(waves),
            log(min(blocks * threads, sms * RESIDENT)), log(cut.step), min(SECTOR, cut.step * item), len(cut.reduced),
            len(cut.kept), log(nearest[0][0]), alignment(nearest[0][0]), log(others[0][0]) if others else -1,
            alignment(source.offset), log(cut.reduced[0][1]) if cut.reduced else -1,
            log(cut.kept[0][1]) if cut.kept else -1,
            next((log(size) for size, step in (*cut.kept, *cut.reduced) if step == 1), -1),
            log(others[0][1]) if others else -1,
        ]  # fmt: skip
        return Described(features, Work(flops=numel, bytes=bytes_ + outputs * item))


PLACE = {name: place for place, name in enumerate(Reductions.ops)}


def reduced_dims(op: Op, source: Tensor) -> set[int]:
    """The dimensions that a call reduces: all where it names none.

    >>> reduced_dims(Op("aten::sum", (Tensor((2, 3), "float32"), [-1])), Tensor((2, 3), "float32"))
    {1}
    """
    count = len(source.shape)
    dim = argument(op, 2 if "norm" in op.name else 1, "dim")
    listed = [dim] if isinstance(dim, int) and not isinstance(dim, bool) else whole(dim)
    return {d % count for d in listed} if listed and count else set(range(count))
