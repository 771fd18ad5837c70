"""How PyTorch cuts a reduction into blocks and threads: its `setReduceConfig`, retold."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from foretrace.cost_models.families.values import alignment, per, strides_of
from foretrace.graph import Tensor

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
class Plan:
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


def plan(source: Tensor, dims: Collection[int], processors: int) -> Plan:
    """Blocks and threads for a reduction of some dimensions of a tensor.

    >>> whole = plan(Tensor((4096, 4096), "float32"), {0, 1}, processors=132)
    >>> whole.along, whole.width * whole.height, whole.split
    (True, 512, 528)
    >>> columns = plan(Tensor((4096, 1000), "float32"), {0}, processors=132)
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
    across = per(inputs, lanes) >= min(height * FEW, MANY)
    lanes *= height if across else 1
    results = (1 if along else width) * (1 if across else height)
    blocks, each = per(outputs / wide, results), per(inputs, lanes)
    split = 1
    target = processors * (RESIDENT // (width * height))
    if across and each >= MANY and blocks <= target:
        split = max(min(per(target, blocks), per(each, FEW)), per(each, MANY))
    return Plan(reduced, kept, along, wide, width, height, across, blocks, split, per(each, split))


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
