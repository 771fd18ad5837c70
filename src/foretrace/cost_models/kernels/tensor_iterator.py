"""How an element-wise kernel walks its operands: dimensions merged where every operand allows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foretrace.cost_models.kernels.family import Described, Work
from foretrace.cost_models.kernels.features import alignment, dense, dtype_code, is_dense, log
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


# --- was cost_models.kernels.families.pointwise: Columns for calls that walk their operands element by element: element-wise calls, copies, dropout.

COLUMNS = (
    "numel", "bytes", "read", "written", "operands", "dtype", "out_dtype", "mixed", "even", "dims", "inner",
    "inner_aligned", "jumps", "repeats", "numel_aligned", "second", "largest_step", "other_dtype", "inner_step",
    "run", "outer",
)  # fmt: skip


def output_of(operands: Sequence[Tensor], dtype: str) -> Tensor:
    """What an element-wise call makes of its operands: their broadcast shape, laid out as the first full one is.

    >>> output_of([Tensor((4, 1), "float32"), Tensor((4, 8), "float32", stride=(1, 4))], "bool").stride
    (1, 4)
    """
    shape = broadcast_shape(operands)
    like = next((t for t in operands if t.shape == shape), None)
    stride = like.stride if like is not None and like.stride is not None and _packed(like) else None
    return Tensor(shape, dtype, stride=stride)


def pointwise(head: Sequence[float], reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Described:
    """A call that reads and writes these element by element: columns of its family, then ours, and its work.

    >>> columns, work = pointwise([7], [Tensor((4, 8), "float32")], [Tensor((4, 8), "float32")])
    >>> work.bytes, len(columns) == 1 + len(COLUMNS)
    (256, True)
    """
    operands = [*writes, *reads]
    shape = broadcast_shape(operands)
    if all(t.shape == shape and is_dense(t) for t in operands):
        return _straight(head, reads, writes, operands)
    way = walk(shape, operands)
    sizes = [way.distinct(i) * t.itemsize for i, t in enumerate(operands)]
    written, read = sum(sizes[: len(writes)]), sum(sizes[len(writes) :])
    numel = way.numel
    features = [
        *head, log(numel), log(read + written), log(read), log(written), len(operands),
        *_dtypes(reads, writes, operands), way.even, len(way.sizes), log(way.inner), alignment(way.inner), way.jumps,
        way.repeats, alignment(numel), log(way.sizes[1]) if len(way.sizes) > 1 else -1,
        log(max((s for step in way.steps for s in step), default=0)),
        dtype_code(reads[1].dtype) if len(reads) > 1 else -1, *_turns(way),
    ]  # fmt: skip
    return Described(features, Work(flops=numel, bytes=read + written))


def _straight(
    head: Sequence[float], reads: Sequence[Tensor], writes: Sequence[Tensor], operands: Sequence[Tensor]
) -> Described:
    """What `pointwise` finds where every operand is read straight through."""
    numel = operands[0].numel if operands else 0
    read, written = numel * sum(t.itemsize for t in reads), numel * sum(t.itemsize for t in writes)
    aligned = alignment(numel)
    dims = int(numel > 1)
    features = [
        *head, log(numel), log(read + written), log(read), log(written), len(operands),
        *_dtypes(reads, writes, operands), True, dims, log(numel), aligned if dims else 1, 0, 0, aligned, -1, 0.0,
        dtype_code(reads[1].dtype) if len(reads) > 1 else -1, -1.0, -1.0, -1.0,
    ]  # fmt: skip
    return Described(features, Work(flops=numel, bytes=read + written))


def _dtypes(reads: Sequence[Tensor], writes: Sequence[Tensor], operands: Sequence[Tensor]) -> tuple[int, int, bool]:
    first = operands[0].dtype if operands else ""
    return (dtype_code(reads[0].dtype) if reads else -1, dtype_code(writes[0].dtype) if writes else -1,
            any(t.dtype != first for t in operands))  # fmt: skip


def _turns(way: Walk) -> tuple[float, float, float]:
    """Where an operand jumps in the innermost dimension: how far, how long the runs are that it has elsewhere, and
    how often those are begun."""
    jumping = max((step for step in way.steps if step), key=lambda step: step[0], default=())
    if not jumping or jumping[0] <= 1:
        return -1.0, -1.0, -1.0
    run = next((size for size, step in zip(way.sizes, jumping) if step == 1), 0)
    return log(jumping[0]), log(run), log(way.numel / max(1, run * way.inner))


def _packed(tensor: Tensor) -> bool:
    """Whether the elements lie side by side in some order."""
    expected = 1
    for step, size in sorted(zip(tensor.stride or (), tensor.shape)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True
