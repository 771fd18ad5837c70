"""Sums, means, extrema and norms over dimensions: length of a reduction, and its blocks and threads."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    RESIDENT,
    SECTOR,
    WARP,
    alignment,
    argument,
    ceil_div,
    dtype_argument,
    dtype_code,
    ints_in,
    log,
    strides_of,
    tensors_of,
    wave_quantization,
)  # fmt: skip
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.measurements.cases import Case, Draw, strides

DIM_SECOND = ("sum", "mean", "amax", "amin", "var", "std", "max", "min", "argmax", "argmin", "any", "all", "prod",
              "logsumexp", "var_mean", "nansum", "count_nonzero", "std_mean", "aminmax", "nanmean",
              "median")  # fmt: skip
DIM_THIRD = ("linalg_vector_norm", "norm")


class Reductions(Family):
    """Reductions over some dimensions or all of them."""

    name = "reductions"
    share = 2.5
    ops = tuple(f"aten::{name}" for name in (*DIM_SECOND, *DIM_THIRD))
    columns = ("op", "numel", "bytes", "dtype", "out_dtype", "inputs", "outputs", "along", "wide", "width", "height",
               "across", "blocks", "split", "each", "waves", "ragged", "threads", "step", "fetched", "reduced_dims",
               "kept_dims", "inner", "inner_aligned", "second", "offset", "reduced_step", "kept_step", "unit",
               "second_step")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Not the elementwise maximum of two tensors, which has the same name."""
        return op.overload != "other" and bool(op.args) and isinstance(op.args[0], Tensor)

    def describe(self, op: Op, context: CallContext) -> Description:
        """Blocks and threads, and how much of each memory sector is used."""
        source = tensors_of(op)[0]
        plan = reduce_plan(source, reduced_dims(op, source), context.device.sms)
        numel, item, sms = source.numel, source.itemsize, context.device.sms
        inputs = 1
        for size, _ in plan.reduced:
            inputs *= size
        outputs = numel / inputs if inputs else 0
        threads = plan.width * plan.height
        blocks = plan.blocks * plan.split
        waves = blocks * threads / (sms * RESIDENT)
        nearest = (plan.reduced if plan.along else plan.kept) or [(1, 1)]
        others = [*nearest[1:], *(plan.kept if plan.along else plan.reduced)]
        bytes_ = numel * item
        features = [
            self.op_codes[op.name], log(numel), log(bytes_), dtype_code(source.dtype),
            dtype_code(dtype_argument(op, source.dtype)), log(inputs), log(outputs), plan.along, plan.wide, plan.width,
            plan.height, plan.across, log(blocks), log(plan.split), log(plan.each), log(waves),
            wave_quantization(waves), log(min(blocks * threads, sms * RESIDENT)), log(plan.step),
            min(SECTOR, plan.step * item), len(plan.reduced), len(plan.kept), log(nearest[0][0]),
            alignment(nearest[0][0]), log(others[0][0]) if others else -1, alignment(source.offset),
            log(plan.reduced[0][1]) if plan.reduced else -1, log(plan.kept[0][1]) if plan.kept else -1,
            next((log(size) for size, step in (*plan.kept, *plan.reduced) if step == 1), -1),
            log(others[0][1]) if others else -1,
        ]  # fmt: skip
        return Description(features, Work(flops=numel, bytes=bytes_ + outputs * item))

    def case(self, draw: Draw) -> Case:
        """A random reduction."""
        if draw.chance(0.06):
            return Case(_over_repeats(draw))
        dims = draw.weighted({1: 1, 2: 8, 3: 4, 4: 5})
        shape, dtype = draw.shape(dims, low=draw.one((16, 1024, 1024))), draw.dtype()
        tensor = Tensor(shape, dtype, stride=draw.layout(shape))
        name, overload = draw.weighted(OPS)
        keep = draw.chance(0.5)
        if overload == "default" and name in ("sum", "mean", "any"):
            args: tuple[Value, ...] = (tensor,)
        elif name in ("argmax", "max"):
            args = (tensor, draw.random.randrange(dims), keep)
        elif name == "linalg_vector_norm":
            args = (tensor, 2) if draw.chance(0.6) else (tensor, 2, list(_some(draw, dims)), keep)
        elif name in ("var", "var_mean"):
            reduced = _some(draw, dims)
            options: dict[str, Value] = {"correction": int(all(shape[dim] > 1 for dim in reduced)), "keepdim": keep}
            return Case(Op(f"aten::{name}", (tensor, list(reduced)), options, overload=overload))
        else:
            args = (tensor, list(_some(draw, dims)), keep)
        return Case(Op(f"aten::{name}", args, overload=overload))


def reduced_dims(op: Op, source: Tensor) -> set[int]:
    """The dimensions that a call reduces: all if it names none.

    >>> reduced_dims(Op("aten::sum", (Tensor((2, 3), "float32"), [-1])), Tensor((2, 3), "float32"))
    {1}
    """
    count = len(source.shape)
    dim = argument(op, 2 if "norm" in op.name else 1, "dim")
    listed = [dim] if isinstance(dim, int) and not isinstance(dim, bool) else ints_in(dim)
    return {d % count for d in listed} if listed and count else set(range(count))


THREADS = 512
"""Threads of a block at most, before vectorizing over outputs."""
MIN_PER_THREAD, MAX_PER_THREAD = 16, 256
"""Inputs of a thread: with fewer a split is not worth it, with more blocks share an output."""

Dims = list[tuple[int, int]]
"""Size and stride of dimensions, innermost first."""


class ReducePlan(NamedTuple):
    """Blocks and threads of a reduction: PyTorch's ``setReduceConfig``."""

    reduced: Dims
    kept: Dims
    along: bool
    """Whether neighbouring threads read along the reduced dimension, rather than along the outputs."""
    wide: int
    """Outputs that a thread computes at once (vectorized)."""
    width: int
    height: int
    across: bool
    """Whether the warps of a block share an output."""
    blocks: int
    split: int
    """Blocks that share an output: these need a memset and a second pass."""
    each: int
    """Inputs of a thread."""

    @property
    def step(self) -> int:
        """Stride between the inputs of neighbouring threads."""
        dims = self.reduced if self.along else self.kept
        return dims[0][1] if dims else 1


def reduce_plan(source: Tensor, dims: Collection[int], processors: int) -> ReducePlan:
    """Blocks and threads for a reduction of some dimensions of a tensor."""
    reduced, kept = merged(source, dims)
    inputs, outputs = math.prod(n for n, _ in reduced), math.prod(n for n, _ in kept)
    along = not kept or (bool(reduced) and reduced[0][1] < kept[0][1])
    wide = 1
    first, second = (inputs, outputs) if along else (outputs, inputs)
    if not along and kept[0][1] == 1:
        others = [step for _, step in (*reduced, *kept[1:])]
        wide = min(4, alignment(kept[0][0]), *(alignment(step) for step in others))
    elif along and not kept and inputs > 128:
        first //= 4
    width, height = _block(max(1, first // wide), second, THREADS // wide)
    lanes = width if along else 1
    across = ceil_div(inputs, lanes) >= min(height * MIN_PER_THREAD, MAX_PER_THREAD)
    lanes *= height if across else 1
    results = (1 if along else width) * (1 if across else height)
    blocks, each = ceil_div(outputs / wide, results), ceil_div(inputs, lanes)
    split = 1
    target = processors * (RESIDENT // (width * height))
    if across and each >= MAX_PER_THREAD and blocks <= target:
        split = max(min(ceil_div(target, blocks), ceil_div(each, MIN_PER_THREAD)), ceil_div(each, MAX_PER_THREAD))
    return ReducePlan(reduced, kept, along, wide, width, height, across, blocks, split, ceil_div(each, split))


def merged(source: Tensor, dims: Collection[int]) -> tuple[Dims, Dims]:
    """Reduced dimensions by stride, kept ones in the order of the output, merged where possible.

    >>> merged(Tensor((4, 8, 16), "float32"), {0, 1})
    ([(32, 16)], [(16, 1)])
    """
    strides = strides_of(source)
    reduced = sorted((strides[d], source.shape[d]) for d in dims if source.shape[d] != 1)
    kept = [(strides[d], size) for d, size in enumerate(source.shape) if d not in dims and size != 1][::-1]
    return _merge(reduced), _merge(kept)


def _merge(dims: list[tuple[int, int]]) -> Dims:
    result: Dims = []
    for step, size in dims:
        if result and step == result[-1][0] * result[-1][1]:
            result[-1] = (result[-1][0] * size, result[-1][1])
        else:
            result.append((size, step))
    return result


def _block(first: int, second: int, most: int) -> tuple[int, int]:
    """Width and height of a block in threads."""
    along = 1 << (min(first, most).bit_length() - 1) if first else 1
    across = 1 << (min(second, most).bit_length() - 1) if second else 1
    height = min(across, most // min(along, WARP))
    return min(along, most // height), height


# Cases to measure

OPS = {
    ("sum", "dim_IntList"): 12, ("mean", "dim"): 5, ("amax", "default"): 2, ("var", "correction"): 2,
    ("linalg_vector_norm", "default"): 2, ("sum", "default"): 2, ("mean", "default"): 2, ("argmax", "default"): 1,
    ("max", "dim"): 1, ("any", "default"): 1, ("logsumexp", "default"): 1, ("var_mean", "correction"): 1,
}  # fmt: skip


def _over_repeats(draw: Draw) -> Op:
    """The gradient of keys that several query heads share."""
    batch, heads, repeats, width = draw.whole(1, 32), draw.whole(1, 16), draw.one((2, 3, 4, 8)), draw.one((64, 128))
    length = draw.size(1, max(1, min(8192, draw.most // (batch * heads * repeats * width))))
    shape = (batch, heads, repeats, length, width)
    tensor = Tensor(shape, draw.dtype(), stride=strides(shape, (0, 3, 1, 2, 4) if draw.chance(0.6) else None))
    return Op("aten::sum", (tensor, [2], True), overload="dim_IntList")


def _some(draw: Draw, dims: int) -> list[int]:
    """The dimensions to reduce: the first (the gradient of a bias), the last, all pixels of an image, or any."""
    if dims == 4 and draw.chance(0.4):
        return [-1, -2]
    style = draw.weighted({"first": 5, "last": 3, "all but one": 2, "any": 2})
    if style == "first":
        return [0]
    if style == "last":
        return [dims - 1]
    kept = draw.random.randrange(dims)
    if style == "all but one" and dims > 1:
        return [dim for dim in range(dims) if dim != kept]
    return [kept]
