"""How an element-wise kernel walks its operands: dimensions merged where every operand allows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.cost_models.families.values import dense
from foretrace.graph import Tensor


@dataclass(frozen=True, slots=True)
class Walk:
    """The merged dimensions, innermost first, and each operand's step along each, in elements."""

    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    """By operand."""

    @property
    def numel(self) -> int:
        """Elements walked over."""
        return math.prod(self.sizes)

    @property
    def even(self) -> bool:
        """Whether every operand is read straight through, so that loads can be wide."""
        return len(self.sizes) <= 1 and all(step[:1] in ((1,), ()) for step in self.steps)

    @property
    def inner(self) -> int:
        """Size of the innermost dimension."""
        return self.sizes[0] if self.sizes else 1

    def distinct(self, operand: int) -> int:
        """Elements of an operand that are not read over and over.

        >>> walk((4, 8), [Tensor((8,), "float32")]).distinct(0)
        8
        """
        return math.prod(size for size, step in zip(self.sizes, self.steps[operand]) if step)

    @property
    def jumps(self) -> int:
        """Operands whose neighbours in the innermost dimension lie apart in memory."""
        return sum(bool(step) and step[0] > 1 for step in self.steps)

    @property
    def repeats(self) -> int:
        """Operands that are broadcast."""
        return sum(0 in step for step in self.steps)


def walk(shape: Sequence[int], operands: Sequence[Tensor]) -> Walk:
    """The way over a shape, as PyTorch's iterator finds it: by falling step of the operands, then merged.

    >>> whole = walk((4, 8), [Tensor((4, 8), "float32"), Tensor((4, 8), "float32", stride=(8, 1))])
    >>> whole.sizes, whole.even
    ((32,), True)
    >>> turned = walk((4, 8), [Tensor((4, 8), "float32"), Tensor((4, 8), "float32", stride=(1, 4))])
    >>> turned.sizes, turned.jumps
    ((8, 4), 1)
    """
    if all(t.shape == tuple(shape) and (t.stride is None or t.stride == dense(t.shape)) for t in operands):
        numel = math.prod(shape)
        return Walk((numel,), ((1,),) * len(operands)) if numel > 1 else Walk((), ((),) * len(operands))
    spread = [_broadcast(t, len(shape)) for t in operands]
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    # Innermost is where the first operand with a preference steps least; ties keep the order of the shape.
    dims.sort(key=lambda d: ([s[d] if s[d] else math.inf for s in spread], -d))
    sizes: list[int] = []
    steps: list[list[int]] = []
    for dim in dims:
        here = [s[dim] for s in spread]
        if sizes and all(h == before * sizes[-1] for h, before in zip(here, steps[-1])):
            sizes[-1] *= shape[dim]
        else:
            sizes.append(shape[dim])
            steps.append(here)
    return Walk(tuple(sizes), tuple(tuple(step[i] for step in steps) for i in range(len(operands))))


def broadcast_shape(operands: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape that operands are broadcast to.

    >>> broadcast_shape([Tensor((4, 1), "int8"), Tensor((8,), "int8")])
    (4, 8)
    """
    first = operands[0].shape if operands else ()
    if all(t.shape == first for t in operands):
        return first
    length = max(len(t.shape) for t in operands)
    padded = [(1,) * (length - len(t.shape)) + t.shape for t in operands]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded))


def _broadcast(tensor: Tensor, length: int) -> list[int]:
    strides = tensor.stride if tensor.stride is not None else dense(tensor.shape)
    steps = [0 if size == 1 else step for size, step in zip(tensor.shape, strides)]
    return [0] * (length - len(steps)) + steps[-length:] if length else []
