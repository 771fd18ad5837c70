"""Gradients in other buckets: fewer and larger ones, or more and smaller ones."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Constant, Op, Value
from foretrace.graph.tensor import Tensor
from foretrace.transforms.ddp import Bucket, Place, Share, SharedStep
from foretrace.transforms.fresh import Fresh
from foretrace.transforms.other_tensors import change_tensors, with_tensors
from foretrace.transforms.parallel.data import buckets_of
from foretrace.transforms.parallel.draft import Line
from foretrace.transforms.parallel.weights import Gradient

Moved = Callable[[Tensor], Tensor]
"""A tensor where it lies now."""


def buckets(graph: Graph, mb: float) -> Graph:
    """The step with its gradients shared in buckets of another size, as DDP's ``bucket_cap_mb`` has them.

    Gradients stay in the order in which backward finishes them; a bucket is closed when it is full.

    Parameters
    ----------
    graph
        The step of a rank under DistributedDataParallel: a recording, a sketch, or a trace with its calls' arguments.
    mb
        MiB of a bucket; 25 is DDP's own choice, whose first bucket has 1. Infinity for one of everything.
    """
    step = SharedStep(graph)
    fresh = Fresh(step.ops)
    new: list[_Filled] = []
    for group in dict.fromkeys(bucket.group for bucket in step.buckets):
        ours = [bucket for bucket in step.buckets if bucket.group == group]
        shares = sorted((share for bucket in ours for share in bucket.shares), key=lambda share: share.fill)
        by_fill = {share.fill: share for share in shares}
        sized = buckets_of([Gradient(share.gradient, share.fill, "") for share in shares], mb)
        new += [_Filled.of([by_fill[g.ready] for g in some], ours[0], fresh) for some in sized]
    size = "one bucket" if mb == inf else f"buckets of {mb:g} MB"
    return step.written(
        _placed(step, new), f"gradients are shared in {size}: {len(step.buckets)} before, {len(new)} now"
    )


def bucket_size(text: str) -> float:
    """The MiB that a text says.

    >>> bucket_size("100"), bucket_size("inf")
    (100.0, inf)
    """
    try:
        mb = float(text)
    except ValueError:
        mb = 0.0
    if not mb > 0:
        raise ForetraceError(f"{text!r} is no size of a bucket", "Write MiB, like 25, or inf for a single one.")
    return mb


@dataclass
class _Filled:
    """A new bucket: its gradients, and where each of them lies in it."""

    shares: list[Share]
    room: Tensor
    offsets: list[int]
    like: Bucket
    work: Constant

    @classmethod
    def of(cls, shares: list[Share], like: Bucket, fresh: Fresh) -> _Filled:
        """A bucket of these gradients, sent as another one was."""
        offsets, end = [], 0
        for share in shares:
            offsets.append(end)
            end += share.gradient.numel
        room = fresh.tensor((end,), like=shares[0].part)
        return cls(shares, room, offsets, like, Constant("work", f"bucket.{room.id}"))

    @property
    def filled(self) -> int:
        """The row after which it is full."""
        return max(share.fill for share in self.shares)


def _placed(step: SharedStep, new: list[_Filled]) -> Iterator[tuple[Place, Line]]:
    """All calls of the step, those that have to do with buckets as the new ones want them."""
    rooms = {bucket.room.storage for bucket in step.buckets}
    parts = sorted(
        (share.part.storage, share.part.offset, share.part.numel, bucket.room.storage, offset)
        for bucket in new
        for share, offset in zip(bucket.shares, bucket.offsets)
    )

    def moved(tensor: Tensor) -> Tensor:
        if tensor.storage not in rooms:
            return tensor
        storage, start, size, room, offset = parts[bisect(parts, (tensor.storage, tensor.offset, inf)) - 1]
        if storage != tensor.storage or tensor.offset + tensor.numel > start + size:
            raise LookupError
        return replace(tensor, storage=room, offset=offset + tensor.offset - start)

    back = [row for bucket in step.buckets for row in bucket.back]
    ours = {*back, *(bucket.row for bucket in step.buckets)}
    for row, line in enumerate(step.lines):
        if row not in ours:
            yield (row, 0), replace(line, op=_elsewhere(line, rooms, moved))
    # What comes behind the last gradient: the sums' way back, bucket by bucket.
    end = (max(step.filled, min(back, default=0) - 1), 1)
    for bucket in new:
        yield (bucket.filled, 1) if step.overlapped else end, _sent(step, bucket)
    origins = iter(sorted(back))  # in their old order, which says when storages were freed
    for bucket in new:
        for op in _brought_back(step, bucket, moved):
            yield end, Line(op, next(origins, -1))


def _elsewhere(line: Line, rooms: set[int], moved: Moved) -> Op:
    """A call that may read or fill buckets, of the new ones."""
    if all(tensor.storage not in rooms for tensor in line.op.tensors):
        return line.op
    try:
        return with_tensors(line.op, moved)
    except LookupError:
        raise ForetraceError(
            f"other buckets can't be carried through call {line.row}, {line.op.name}: it reads several gradients of a "
            "bucket at once",
            "Leave the buckets as they are.",
        ) from None


def _sent(step: SharedStep, bucket: _Filled) -> Line:
    """The all_reduce of a bucket."""
    line = step.lines[bucket.like.row]
    op = with_tensors(line.op, lambda _: bucket.room)
    op.outputs = tuple(bucket.work if _is_work(value) else value for value in op.outputs)
    assert line.collective is not None
    return Line(op, collective=replace(line.collective, nbytes=bucket.room.nbytes))


def _brought_back(step: SharedStep, bucket: _Filled, moved: Moved) -> Iterator[Op]:
    """The calls that bring the sums back to the gradients, as DDP makes them: first a view of each, then the copies."""
    if bucket.like.wait >= 0:
        waits = step.ops[bucket.like.wait].__copy__()
        waits.args = tuple(bucket.work if _is_work(value) else value for value in waits.args)
        yield waits
    for share, offset in zip(bucket.shares, bucket.offsets):
        if share.look >= 0:
            yield _look(step.ops[share.look], bucket.room, offset, moved)
    for share in bucket.shares:
        if share.copy >= 0:
            yield with_tensors(step.ops[share.copy], moved)


def _look(op: Op, room: Tensor, offset: int, moved: Moved) -> Op:
    look = op.__copy__()
    look.args = (room, *op.args[1:-1], offset)
    look.outputs = change_tensors(op.outputs, moved)
    return look


def _is_work(value: Value) -> bool:
    return isinstance(value, Constant) and value.kind == "work"
