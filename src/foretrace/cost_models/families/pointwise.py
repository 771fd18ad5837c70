"""Columns for calls that walk their operands element by element: element-wise calls, copies, dropout."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.cost_models.families.family import Described, Work
from foretrace.cost_models.families.values import alignment, dtype_code, is_dense, log
from foretrace.cost_models.families.walk import Walk, broadcast_shape, walk
from foretrace.graph import Tensor

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
