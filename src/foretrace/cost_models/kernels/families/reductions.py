"""Sums, means, extremes and norms over dimensions: how long a reduction is, and how it is cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
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
from foretrace.platform.cases import Case, Draw, strides

DIM_SECOND = ("sum", "mean", "amax", "amin", "var", "std", "max", "min", "argmax", "argmin", "any", "all", "prod",
              "logsumexp", "var_mean", "nansum", "count_nonzero", "std_mean", "aminmax", "nanmean",
              "median")  # fmt: skip
DIM_THIRD = ("linalg_vector_norm", "norm")
SECTOR = 32
"""Bytes that memory hands over at least."""


class Reductions(Family):
    """Many numbers in, few out."""

    name = "reductions"
    share = 2.5
    ops = tuple(f"aten::{name}" for name in (*DIM_SECOND, *DIM_THIRD))
    columns = ("op", "numel", "bytes", "dtype", "out_dtype", "inputs", "outputs", "along", "wide", "width", "height",
               "across", "blocks", "split", "each", "waves", "ragged", "threads", "step", "fetched", "reduced_dims",
               "kept_dims", "inner", "inner_aligned", "second", "offset", "reduced_step", "kept_step", "unit",
               "second_step")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Not the maximum of two tensors, which shares the name."""
        return op.overload != "other" and bool(op.args) and isinstance(op.args[0], Tensor)

    def describe(self, op: Op, context: CallContext) -> Description:
        """The plan of blocks, and how much of what memory hands over is used."""
        source = tensors_of(op)[0]
        cut = reduce_plan(source, reduced_dims(op, source), context.device.sms)
        numel, item, sms = source.numel, source.itemsize, context.device.sms
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
            cut.height, cut.across, log(blocks), log(cut.split), log(cut.each), log(waves), wave_quantization(waves),
            log(min(blocks * threads, sms * RESIDENT)), log(cut.step), min(SECTOR, cut.step * item), len(cut.reduced),
            len(cut.kept), log(nearest[0][0]), alignment(nearest[0][0]), log(others[0][0]) if others else -1,
            alignment(source.offset), log(cut.reduced[0][1]) if cut.reduced else -1,
            log(cut.kept[0][1]) if cut.kept else -1,
            next((log(size) for size, step in (*cut.kept, *cut.reduced) if step == 1), -1),
            log(others[0][1]) if others else -1,
        ]  # fmt: skip
        return Description(features, Work(flops=numel, bytes=bytes_ + outputs * item))

    def case(self, draw: Draw) -> Case:
        """A reduction."""
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


PLACE = {name: place for place, name in enumerate(Reductions.ops)}


def reduced_dims(op: Op, source: Tensor) -> set[int]:
    """The dimensions that a call reduces: all where it names none.

    >>> reduced_dims(Op("aten::sum", (Tensor((2, 3), "float32"), [-1])), Tensor((2, 3), "float32"))
    {1}
    """
    count = len(source.shape)
    dim = argument(op, 2 if "norm" in op.name else 1, "dim")
    listed = [dim] if isinstance(dim, int) and not isinstance(dim, bool) else ints_in(dim)
    return {d % count for d in listed} if listed and count else set(range(count))


WARP = 32
THREADS = 512
"""Most threads of a block, before outputs are taken several at a time."""
RESIDENT = 2048
"""Threads that a processor holds at once."""
FEW, MANY = 16, 256
"""Inputs of a thread: fewer are not worth a split, more are split over blocks."""

Dims = list[tuple[int, int]]
"""Size and step of dimensions, innermost first."""


@dataclass(frozen=True, slots=True)
class ReducePlan:
    """Blocks and threads of one reduction."""

    reduced: Dims
    kept: Dims
    along: bool
    """Whether neighbouring threads read what is summed up, rather than neighbouring results."""
    wide: int
    """Results a thread works on at once."""
    width: int
    height: int
    across: bool
    """Whether the warps of a block share a result."""
    blocks: int
    split: int
    """Blocks that share a result: these need a memset and a second pass."""
    each: int
    """Inputs of one thread."""

    @property
    def step(self) -> int:
        """Elements from one thread's input to its neighbour's."""
        dims = self.reduced if self.along else self.kept
        return dims[0][1] if dims else 1


def reduce_plan(source: Tensor, dims: Collection[int], processors: int) -> ReducePlan:
    """Blocks and threads for a reduction of some dimensions of a tensor.

    >>> every = reduce_plan(Tensor((4096, 4096), "float32"), {0, 1}, processors=132)
    >>> every.along, every.width * every.height, every.split
    (True, 512, 528)
    >>> columns = reduce_plan(Tensor((4096, 1000), "float32"), {0}, processors=132)
    >>> columns.along, columns.wide, columns.width
    (False, 4, 32)
    """
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
    across = ceil_div(inputs, lanes) >= min(height * FEW, MANY)
    lanes *= height if across else 1
    results = (1 if along else width) * (1 if across else height)
    blocks, each = ceil_div(outputs / wide, results), ceil_div(inputs, lanes)
    split = 1
    target = processors * (RESIDENT // (width * height))
    if across and each >= MANY and blocks <= target:
        split = max(min(ceil_div(target, blocks), ceil_div(each, FEW)), ceil_div(each, MANY))
    return ReducePlan(reduced, kept, along, wide, width, height, across, blocks, split, ceil_div(each, split))


def merged(source: Tensor, dims: Collection[int]) -> tuple[Dims, Dims]:
    """Reduced dimensions by step of the operand, kept ones in the order of the result, merged where they can be.

    >>> merged(Tensor((4, 8, 16), "float32"), {0, 1})
    ([(32, 16)], [(16, 1)])
    """
    strides = strides_of(source)
    reduced = sorted((strides[d], source.shape[d]) for d in dims if source.shape[d] != 1)
    kept = [(strides[d], size) for d, size in enumerate(source.shape) if d not in dims and size != 1][::-1]
    return _joined(reduced), _joined(kept)


def _joined(dims: list[tuple[int, int]]) -> Dims:
    joined: Dims = []
    for step, size in dims:
        if joined and step == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, step))
    return joined


def _block(first: int, second: int, most: int) -> tuple[int, int]:
    """Threads along the two dimensions of a block."""
    along = 1 << (min(first, most).bit_length() - 1) if first else 1
    beside = 1 << (min(second, most).bit_length() - 1) if second else 1
    height = min(beside, most // min(along, WARP))
    return min(along, most // height), height


# Cases to measure

OPS = {
    ("sum", "dim_IntList"): 12, ("mean", "dim"): 5, ("amax", "default"): 2, ("var", "correction"): 2,
    ("linalg_vector_norm", "default"): 2, ("sum", "default"): 2, ("mean", "default"): 2, ("argmax", "default"): 1,
    ("max", "dim"): 1, ("any", "default"): 1, ("logsumexp", "default"): 1, ("var_mean", "correction"): 1,
}  # fmt: skip


def _over_repeats(draw: Draw) -> Op:
    """The gradient of keys that several queries' heads share."""
    batch, heads, repeats, width = draw.whole(1, 32), draw.whole(1, 16), draw.one((2, 3, 4, 8)), draw.one((64, 128))
    length = draw.size(1, max(1, min(8192, draw.most // (batch * heads * repeats * width))))
    shape = (batch, heads, repeats, length, width)
    tensor = Tensor(shape, draw.dtype(), stride=strides(shape, (0, 3, 1, 2, 4) if draw.chance(0.6) else None))
    return Op("aten::sum", (tensor, [2], True), overload="dim_IntList")


def _some(draw: Draw, dims: int) -> list[int]:
    """The dimensions to reduce: the first (a bias's gradient), the last, all pixels of an image, or any."""
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
