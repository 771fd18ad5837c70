"""The buckets in which DistributedDataParallel shares gradients: found in a step, to be filled or sent otherwise."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Collective, Graph
from foretrace.graph.op import Constant, Op, Value, map_tensors, with_tensors
from foretrace.graph.operators import COLLECTIVE_CALLS
from foretrace.graph.tensor import Tensor
from foretrace.transforms.draft import ProcessGroup, draft_of
from foretrace.transforms.parallel.data import gradient_buckets, share_gradients
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, editable_step, flatten, recompute_frees
from foretrace.transforms.weights import Gradient

SHARES = "c10d::allreduce_"
FILLS = ("aten::mul", "aten::div", "aten::copy_")
JOINS = "fsdp::chunk_cat"
"""What brings gradients together for FSDP2's reduce_scatter."""
LOOK, COPY, WAIT = "aten::as_strided", "aten::copy_", "c10d::wait"


class BucketedGradient(NamedTuple):
    """One gradient in a bucket, and the rows of the calls that bring it in, look at its sum, and copy that back."""

    gradient: Tensor
    part: Tensor
    """Where it lies in the bucket."""
    fill: int
    look: int = -1
    copy: int = -1
    """-1 where the optimizer reads the bucket itself: DDP's ``gradient_as_bucket_view``."""


@dataclass
class Bucket:
    """Gradients that go out together."""

    room: Tensor
    row: int
    """That of its all_reduce."""
    group: str
    shares: list[BucketedGradient] = field(default_factory=list)
    wait: int = -1
    """The row at which the host asks that it is done; -1 for DDP's own reducer, which does so inside."""

    @property
    def filled(self) -> int:
        """The row after which all its gradients are in."""
        return max(share.fill for share in self.shares)

    @property
    def back(self) -> list[int]:
        """Rows of the calls that bring the sums back, in DDP's order."""
        rows = [self.wait, *(share.look for share in self.shares), *(share.copy for share in self.shares)]
        return [row for row in rows if row >= 0]


Place = tuple[int, int]
"""A row of the step, and the turn of a call there: 0 for the call that was there, more for those put behind it."""


class DdpStep:
    """A step whose gradients are shared in buckets.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.ops = editable_step(graph)
        collectives = {collective.op: collective for collective in self.graph.collectives}
        self.calls = [EditedCall(op, row, collectives.get(row)) for row, op in enumerate(self.ops)]
        self.buckets = list(_buckets(self.ops))
        if not self.buckets:
            raise ForetraceError(
                f"{graph.title} shares no gradients in buckets, as DistributedDataParallel does",
                "Give a step under DistributedDataParallel, or share that of one rank: --set data=8.",
            )
        for bucket in self.buckets:
            call = self.calls[bucket.row]
            ranks, room = self.graph.groups.get(bucket.group, ()), bucket.room
            call.collective = call.collective or Collective(
                "all_reduce", bucket.group, room.nbytes, -1, bucket.row, ranks, room.dtype
            )

    @property
    def overlapped(self) -> bool:
        """Whether some bucket goes out while others are still being filled."""
        return len(self.buckets) == 1 or min(bucket.row for bucket in self.buckets) < self.filled

    @property
    def filled(self) -> int:
        """The row after which all buckets are full."""
        return max(bucket.filled for bucket in self.buckets)

    def written(self, placed: Iterable[tuple[Place, EditedCall]], note: str) -> Graph:
        """The step with its calls at these places; of calls at one place, the first comes first."""
        calls = [call for _, call in sorted(placed, key=lambda one: one[0])]
        rows = [EditedCall(call.op, call.origin) for call in calls]
        recompute_frees(rows, self.ops)
        seen = {tensor.storage for row in rows for tensor in row.op.tensors}
        gone = {bucket.room.storage for bucket in self.buckets} - seen
        storages = {number: storage for number, storage in self.graph.storages.items() if number not in gone}
        made = assemble(replace(self.graph, storages=storages), rows)
        made.collectives = [replace(call.collective, op=at) for at, call in enumerate(calls) if call.collective]
        made.notes.append(note)
        return made


def _buckets(ops: Sequence[Op]) -> Iterator[Bucket]:
    """The buckets of a step: an all_reduce of one flat tensor, all of which was brought there piece by piece."""
    writes: dict[int, list[int]] = {}
    for row, op in enumerate(ops):
        if op.name in FILLS and (part := _filled(op)) is not None:
            writes.setdefault(part.storage, []).append(row)
        given = op.tensors
        if op.name != SHARES or len(given) != 1 or len(given[0].shape) != 1:
            continue
        room, fills = given[0], writes.pop(given[0].storage, [])
        if sum(_part(ops[fill]).numel for fill in fills) == room.numel:
            yield _bucket(ops, room, row, fills)


def _bucket(ops: Sequence[Op], room: Tensor, row: int, fills: Sequence[int]) -> Bucket:
    group = next((one.value for one in ops[row].args if isinstance(one, Constant) and one.kind == "group"), "")
    work = next((one for one in ops[row].outputs if isinstance(one, Constant) and one.kind == "work"), None)
    looks, copies, wait = dict[int, int](), dict[int, int](), -1
    for later in range(row + 1, len(ops)):
        op = ops[later]
        if op.name == WAIT and work in op.args:
            wait = later
        elif op.name in (SHARES, LOOK, COPY) and (read := op.tensors[-1:]) and read[0].storage == room.storage:
            if op.name == SHARES:
                break
            if op.name == COPY:
                copies[read[0].offset] = later
            elif op.produced:
                looks[op.produced[0].offset] = later
    shares = []
    for fill in fills:
        part = _part(ops[fill])
        shares.append(BucketedGradient(_gradient(ops[fill]), part, fill, looks.get(part.offset, -1), copies.get(part.offset, -1)))
    return Bucket(room, row, group, shares, wait)


def _filled(op: Op) -> Tensor | None:
    """What a call brings something of the same shape to, elsewhere; None for another call."""
    tensors = op.tensors
    part = op.kwargs.get("out", tensors[0] if op.name == COPY and tensors else None)
    return part if isinstance(part, Tensor) and part.storage != tensors[-1 if op.name == COPY else 0].storage else None


def _part(op: Op) -> Tensor:
    part = _filled(op)
    assert part is not None
    return part


def _gradient(op: Op) -> Tensor:
    return op.tensors[1 if op.name == COPY else 0]


def data_parallel_group(graph: Graph) -> tuple[int, ...]:
    """Ranks that sum their gradients, in DDP's buckets or in FSDP2's shards; none where the step shows neither."""
    graph = flatten(graph)
    ops = list(graph.ops)
    named = {bucket.row: bucket.group for bucket in _buckets(ops)}
    scatters = any(op.name == JOINS for op in ops)
    for collective in graph.collectives:
        if collective.op in named or (scatters and collective.kind == "reduce_scatter"):
            return collective.ranks or graph.groups.get(collective.group, ())
    return graph.groups.get(next(iter(named.values()), ""), ())


# --- was transforms.buckets: Gradients in other buckets: fewer and larger ones, or more and smaller ones.

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
    step = DdpStep(graph)
    fresh = IdAllocator(step.ops)
    new: list[_Filled] = []
    for group in dict.fromkeys(bucket.group for bucket in step.buckets):
        ours = [bucket for bucket in step.buckets if bucket.group == group]
        shares = sorted((share for bucket in ours for share in bucket.shares), key=lambda share: share.fill)
        by_fill = {share.fill: share for share in shares}
        sized = gradient_buckets([Gradient(share.gradient, share.fill, "") for share in shares], mb)
        new += [_Filled.of([by_fill[g.ready] for g in some], ours[0], fresh) for some in sized]
    size = "one bucket" if mb == inf else f"buckets of {mb:g} MB"
    return step.written(
        _placed(step, new), f"gradients are shared in {size}: {len(step.buckets)} before, {len(new)} now"
    )


def parse_bucket_size(text: str) -> float:
    """The MiB that a text says.

    >>> parse_bucket_size("100"), parse_bucket_size("inf")
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

    shares: list[BucketedGradient]
    room: Tensor
    offsets: list[int]
    like: Bucket
    work: Constant

    @classmethod
    def of(cls, shares: list[BucketedGradient], like: Bucket, fresh: IdAllocator) -> _Filled:
        """A bucket of these gradients, sent as another one was."""
        offsets, end = [], 0
        for share in shares:
            offsets.append(end)
            end += share.gradient.numel
        room = fresh.tensor((end,), shares[0].part.dtype, shares[0].part.device)
        return cls(shares, room, offsets, like, Constant("work", f"bucket.{room.id}"))

    @property
    def filled(self) -> int:
        """The row after which it is full."""
        return max(share.fill for share in self.shares)


def _placed(step: DdpStep, new: list[_Filled]) -> Iterator[tuple[Place, EditedCall]]:
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
    for row, call in enumerate(step.calls):
        if row not in ours:
            yield (row, 0), replace(call, op=_elsewhere(call, rooms, moved))
    # What comes behind the last gradient: the sums' way back, bucket by bucket.
    end = (max(step.filled, min(back, default=0) - 1), 1)
    for bucket in new:
        yield (bucket.filled, 1) if step.overlapped else end, _sent(step, bucket)
    origins = iter(sorted(back))  # in their old order, which says when storages were freed
    for bucket in new:
        for op in _brought_back(step, bucket, moved):
            yield end, EditedCall(op, next(origins, -1))


def _elsewhere(call: EditedCall, rooms: set[int], moved: Moved) -> Op:
    """A call that may read or fill buckets, of the new ones."""
    if all(tensor.storage not in rooms for tensor in call.op.tensors):
        return call.op
    try:
        return with_tensors(call.op, moved)
    except LookupError:
        raise ForetraceError(
            f"other buckets can't be carried through call {call.origin}, {call.op.name}: it reads several gradients of a "
            "bucket at once",
            "Leave the buckets as they are.",
        ) from None


def _sent(step: DdpStep, bucket: _Filled) -> EditedCall:
    """The all_reduce of a bucket."""
    call = step.calls[bucket.like.row]
    op = with_tensors(call.op, lambda _: bucket.room)
    op.outputs = tuple(bucket.work if _is_work(value) else value for value in op.outputs)
    assert call.collective is not None
    return EditedCall(op, collective=replace(call.collective, nbytes=bucket.room.nbytes))


def _brought_back(step: DdpStep, bucket: _Filled, moved: Moved) -> Iterator[Op]:
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
    look.outputs = map_tensors(op.outputs, moved)
    return look


def _is_work(value: Value) -> bool:
    return isinstance(value, Constant) and value.kind == "work"


# --- was transforms.overlap: Gradients shared beside the backward that makes them, or all of them behind it.


def overlap(graph: Graph, on: bool) -> Graph:
    """The step with each bucket of gradients sent as soon as it is full; or with all sent when backward is done.

    Parameters
    ----------
    graph
        The step of a rank that shares its gradients in buckets, as DistributedDataParallel does.
    on
        Whether they go out beside backward.
    """
    step = DdpStep(graph)
    if on:
        return step.written(_beside(step), "gradients are shared beside backward, each bucket when it is full")
    return step.written(_behind(step), "gradients are shared when backward is done, and not beside it")


def _behind(step: DdpStep) -> Iterator[tuple[Place, EditedCall]]:
    """Every bucket waits until the last one is full."""
    sent = {bucket.row: (max(bucket.row, step.filled), 1) for bucket in step.buckets}
    return _moved(step, sent)


def _beside(step: DdpStep) -> Iterator[tuple[Place, EditedCall]]:
    """Gradients are brought to their bucket when they are whole; the last one sends it."""
    places: dict[int, Place] = {}
    for bucket in step.buckets:
        for share in bucket.shares:
            places[share.fill] = _whole(step, share.fill, share.gradient.storage)
        last = max(bucket.shares, key=lambda share: places[share.fill])
        places[bucket.row] = (places[last.fill][0], 1 if places[last.fill][1] == 0 else 2)
    return _moved(step, places)


def _moved(step: DdpStep, places: dict[int, Place]) -> Iterator[tuple[Place, EditedCall]]:
    """The calls of a step, some of them elsewhere."""
    for row, call in enumerate(step.calls):
        place = places.get(row, (row, 0))
        # A call that moves takes nothing with it of what happened where it stood.
        yield place, call if place == (row, 0) else replace(call, origin=-1)


def _whole(step: DdpStep, fill: int, gradient: int) -> Place:
    """Where a gradient is whole: the last call of backward that makes it, where it is not there already."""
    if step.ops[fill].phase == "backward" and step.ops[fill].node:
        return fill, 0
    made = [row for row in range(fill) if any(t.storage == gradient for t in step.ops[row].produced)]
    return (max(made), 1) if made else (fill, 0)


# --- was transforms.sharing: A step under DistributedDataParallel as one that shares nothing, and shared again: its buckets are filled anew.

BUCKET_MB = 25.0
"""DDP's own choice."""


def without_gradient_sharing(graph: Graph, what: str) -> tuple[Graph, Callable[[Graph], Graph]]:
    """The flat step of one rank by itself, and what shares the gradients of such a step as they were.

    Refuses a step whose ranks exchange more than gradients in buckets.
    """
    if not any(op.name == SHARES for op in graph.ops):
        _check(list(graph.ops), what)
        return graph, lambda made: made
    step = DdpStep(graph)
    ours = {row for bucket in step.buckets for row in (bucket.row, *bucket.back)}
    ours |= {share.fill for bucket in step.buckets for share in bucket.shares}
    alone = step.written((((row, 0), call) for row, call in enumerate(step.calls) if row not in ours), "")
    alone.notes.pop()
    _check(list(alone.ops), what)
    group = step.buckets[0].group
    ranks = tuple(graph.groups.get(group, ())) or tuple(range(graph.world))

    def shared(made: Graph) -> Graph:
        draft = draft_of(replace(made, world=1), what)
        calls = share_gradients(draft, draft.calls, ProcessGroup(group, ranks), BUCKET_MB)
        note = f"gradients are shared in buckets of {BUCKET_MB:g} MB, as DistributedDataParallel has them"
        return draft.graph_of(calls, graph.rank, graph.world, note)

    return alone, shared


def _check(ops: Sequence[Op], what: str) -> None:
    for row, op in enumerate(ops):
        if op.name.startswith(COLLECTIVE_CALLS) and op.phase != "other":
            raise ForetraceError(
                f"call {row}, {op.name}, exchanges what another {what} changes the size of",
                f"Set {what} of the step of one rank, and let ranks share it after that.",
            )
