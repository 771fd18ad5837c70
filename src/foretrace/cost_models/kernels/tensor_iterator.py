"""How elementwise kernels traverse their operands, as PyTorch's TensorIterator does: dimensions reordered and merged.

`pointwise` makes the features of calls that read and write element by element: elementwise calls, copies, dropout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from foretrace.cost_models.kernels.family import Description
from foretrace.cost_models.kernels.features import alignment, dtype_code, is_dense, log
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Tensor
from foretrace.graph.op import contiguous_strides, is_contiguous

POINTWISE_COLUMNS = (
    "numel", "bytes", "read", "written", "operands", "dtype", "out_dtype", "mixed", "even", "dims", "inner",
    "inner_aligned", "jumps", "repeats", "numel_aligned", "second", "largest_step", "other_dtype", "inner_step",
    "run", "outer",
)  # fmt: skip
"""Names of what `pointwise` adds to a family's own features."""


class Traversal(NamedTuple):
    """The merged dimensions, innermost first, and each operand's stride along each, in elements."""

    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    """By operand."""

    @property
    def numel(self) -> int:
        """Elements traversed."""
        return math.prod(self.sizes)

    @property
    def is_linear(self) -> bool:
        """Whether every operand is read contiguously, so that loads can be vectorized."""
        return len(self.sizes) <= 1 and all(step[:1] in ((1,), ()) for step in self.steps)

    @property
    def inner(self) -> int:
        """Size of the innermost dimension."""
        return self.sizes[0] if self.sizes else 1

    def distinct(self, operand: int) -> int:
        """Elements of an operand, broadcast ones counted once.

        >>> traverse((4, 8), [Tensor((8,), "float32")]).distinct(0)
        8
        """
        return math.prod(size for size, step in zip(self.sizes, self.steps[operand]) if step)

    @property
    def strided_operands(self) -> int:
        """Operands that are strided in the innermost dimension."""
        return sum(bool(step) and step[0] > 1 for step in self.steps)

    @property
    def broadcast_operands(self) -> int:
        """Operands that are broadcast."""
        return sum(0 in step for step in self.steps)


def traverse(shape: Sequence[int], operands: Sequence[Tensor]) -> Traversal:
    """The traversal of a shape, as TensorIterator finds it: dimensions by stride of the operands, merged where
    possible.
    """
    if all(t.shape == tuple(shape) and (t.stride is None or t.stride == contiguous_strides(t.shape)) for t in operands):
        numel = math.prod(shape)
        return Traversal((numel,), ((1,),) * len(operands)) if numel > 1 else Traversal((), ((),) * len(operands))
    expanded = [_expanded_strides(t, len(shape)) for t in operands]
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    # Innermost is the dimension with the least stride of the first operand that has one; ties keep the shape's order.
    dims.sort(key=lambda d: ([s[d] if s[d] else math.inf for s in expanded], -d))
    sizes: list[int] = []
    steps: list[list[int]] = []
    for dim in dims:
        here = [s[dim] for s in expanded]
        if sizes and all(h == before * sizes[-1] for h, before in zip(here, steps[-1])):
            sizes[-1] *= shape[dim]
        else:
            sizes.append(shape[dim])
            steps.append(here)
    return Traversal(tuple(sizes), tuple(tuple(step[i] for step in steps) for i in range(len(operands))))


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


def _expanded_strides(tensor: Tensor, length: int) -> list[int]:
    strides = tensor.stride if tensor.stride is not None else contiguous_strides(tensor.shape)
    steps = [0 if size == 1 else step for size, step in zip(tensor.shape, strides)]
    return [0] * (length - len(steps)) + steps[-length:] if length else []


def output_of(operands: Sequence[Tensor], dtype: str) -> Tensor:
    """The output of an elementwise call: the broadcast shape, laid out like the first operand that has it.

    >>> output_of([Tensor((4, 1), "float32"), Tensor((4, 8), "float32", stride=(1, 4))], "bool").stride
    (1, 4)
    """
    shape = broadcast_shape(operands)
    like = next((t for t in operands if t.shape == shape), None)
    stride = like.stride if like is not None and like.stride is not None and is_dense(like) else None
    return Tensor(shape, dtype, stride=stride)


def pointwise(own: Sequence[float], reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Description:
    """A call that reads and writes these tensors element by element: its family's own features, then ours.

    >>> features, work = pointwise([7], [Tensor((4, 8), "float32")], [Tensor((4, 8), "float32")])
    >>> work.bytes, len(features) == 1 + len(POINTWISE_COLUMNS)
    (256, True)
    """
    operands = [*writes, *reads]
    shape = broadcast_shape(operands)
    if all(t.shape == shape and is_contiguous(t) for t in operands):
        return _contiguous_pointwise(own, reads, writes, operands)
    way = traverse(shape, operands)
    sizes = [way.distinct(i) * t.itemsize for i, t in enumerate(operands)]
    written, read = sum(sizes[: len(writes)]), sum(sizes[len(writes) :])
    numel = way.numel
    features = [
        *own, log(numel), log(read + written), log(read), log(written), len(operands),
        *_dtypes(reads, writes, operands), way.is_linear, len(way.sizes), log(way.inner), alignment(way.inner),
        way.strided_operands, way.broadcast_operands, alignment(numel),
        log(way.sizes[1]) if len(way.sizes) > 1 else -1,
        log(max((s for step in way.steps for s in step), default=0)),
        dtype_code(reads[1].dtype) if len(reads) > 1 else -1, *_transposition(way),
    ]  # fmt: skip
    return Description(features, Work(flops=numel, bytes=read + written))


def _contiguous_pointwise(
    own: Sequence[float], reads: Sequence[Tensor], writes: Sequence[Tensor], operands: Sequence[Tensor]
) -> Description:
    """The same where every operand is contiguous."""
    numel = operands[0].numel if operands else 0
    read, written = numel * sum(t.itemsize for t in reads), numel * sum(t.itemsize for t in writes)
    aligned = alignment(numel)
    dims = int(numel > 1)
    features = [
        *own, log(numel), log(read + written), log(read), log(written), len(operands),
        *_dtypes(reads, writes, operands), True, dims, log(numel), aligned if dims else 1, 0, 0, aligned, -1, 0.0,
        dtype_code(reads[1].dtype) if len(reads) > 1 else -1, -1.0, -1.0, -1.0,
    ]  # fmt: skip
    return Description(features, Work(flops=numel, bytes=read + written))


def _dtypes(reads: Sequence[Tensor], writes: Sequence[Tensor], operands: Sequence[Tensor]) -> tuple[int, int, bool]:
    first = operands[0].dtype if operands else ""
    return (dtype_code(reads[0].dtype) if reads else -1, dtype_code(writes[0].dtype) if writes else -1,
            any(t.dtype != first for t in operands))  # fmt: skip


def _transposition(way: Traversal) -> tuple[float, float, float]:
    """For an operand that is strided in the innermost dimension: the stride, the length of its contiguous runs, and how
    often such runs begin."""
    strided = max((step for step in way.steps if step), key=lambda step: step[0], default=())
    if not strided or strided[0] <= 1:
        return -1.0, -1.0, -1.0
    run = next((size for size, step in zip(way.sizes, strided) if step == 1), 0)
    return log(strided[0]), log(run), log(way.numel / max(1, run * way.inner))
