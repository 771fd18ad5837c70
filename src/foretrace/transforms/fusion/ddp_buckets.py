"""Gradient buckets of DistributedDataParallel: their size, and their overlap with backward.

`DdpStep` finds the buckets in a step: calls that fill them, the all_reduce of each, and the calls that copy the reduced
gradients back.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple, TypeAlias

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Collective, Graph
from foretrace.graph.op import Constant, Op, Tensor, Value, map_tensors, with_tensors
from foretrace.graph.operators import COLLECTIVE_CALLS
from foretrace.transforms.draft import ProcessGroup, draft_of
from foretrace.transforms.parallel.data import DEFAULT_BUCKET_MB, gradient_buckets, share_gradients
from foretrace.transforms.step import EditedCall, UnusedIds, editable_step, flatten, reassemble
from foretrace.transforms.weights import Gradient

ALL_REDUCE = "c10d::allreduce_"
FILLS = ("aten::mul", "aten::div", "aten::copy_")
VIEW, COPY, WAIT = "aten::as_strided", "aten::copy_", "c10d::wait"
CHUNK_CAT = "fsdp::chunk_cat"
"""Concatenates gradients for FSDP2's reduce_scatter."""

Position: TypeAlias = tuple[int, int]
"""A row of the step, and the order of calls there: 0 for the original one, more for those inserted after it."""
Relocate: TypeAlias = Callable[[Tensor], Tensor]
"""Gives a tensor its new place in memory."""


def buckets(graph: Graph, mb: float) -> Graph:
    """The step of a rank under DDP with its gradients in buckets of another size, as by ``bucket_cap_mb``.

    Gradients stay in the order in which backward completes them; a bucket is closed when it has so many MiB. 25 is
    DDP's default, whose first bucket has 1; infinity stands for a single bucket.
    """
    step = DdpStep(graph)
    ids = UnusedIds(step.ops)
    new: list[_NewBucket] = []
    for group in dict.fromkeys(bucket.group for bucket in step.buckets):
        old = [bucket for bucket in step.buckets if bucket.group == group]
        gradients = sorted((one for bucket in old for one in bucket.gradients), key=lambda one: one.fill)
        by_fill = {one.fill: one for one in gradients}
        sized = gradient_buckets([Gradient(one.gradient, one.fill, "") for one in gradients], mb)
        new += [_NewBucket.of([by_fill[g.ready] for g in some], old[0], ids) for some in sized]
    size = "a single bucket" if mb == inf else f"buckets of {mb:g} MB"
    note = f"gradients are reduced in {size}: {len(new)} instead of {len(step.buckets)}"
    return step.graph_of(_with_buckets(step, new), note)


def parse_bucket_size(text: str) -> float:
    """The MiB of a bucket."""
    try:
        mb = float(text)
    except ValueError:
        mb = 0.0
    if not mb > 0:
        raise ForetraceError(f"{text!r} is no bucket size", "Write MiB, like 25, or inf for a single one.")
    return mb


def overlap(graph: Graph, on: bool) -> Graph:
    """The step with each bucket reduced as soon as it is full, overlapping with backward; or all after backward."""
    step = DdpStep(graph)
    if on:
        positions, when = _when_full(step), "during backward, each bucket when it is full"
    else:
        positions = {bucket.row: (max(bucket.row, step.filled), 1) for bucket in step.buckets}
        when = "after backward, without overlap"
    # A call that moves leaves the frees and synchronizations of its row behind.
    placed = [
        (positions[row], replace(call, origin=-1)) if positions.get(row, (row, 0)) != (row, 0) else ((row, 0), call)
        for row, call in enumerate(step.calls)
    ]
    return step.graph_of(placed, f"gradients are reduced {when}")


def data_parallel_group(graph: Graph) -> tuple[int, ...]:
    """Ranks that reduce gradients together: DDP's buckets, FSDP2's shards, ZeRO-1's buffers; empty if there is none."""
    graph = flatten(graph)
    ops = list(graph.ops)
    named = {bucket.row: bucket.group for bucket in _find_buckets(ops)}
    scatters = any(op.name == CHUNK_CAT for op in ops)
    for collective in graph.collectives:
        scatters_gradients = collective.kind == "reduce_scatter" and (scatters or _is_within(ops[collective.op]))
        if collective.op in named or scatters_gradients:
            return collective.ranks or graph.groups.get(collective.group, ())
    return graph.groups.get(next(iter(named.values()), ""), ())


def _is_within(op: Op) -> bool:
    """Whether a call scatters within a buffer, as ZeRO-1 does with gradients."""
    return len({tensor.storage for tensor in op.tensors}) == 1 and op.tensors[0].storage >= 0


def without_gradient_sharing(graph: Graph, what: str) -> tuple[Graph, Callable[[Graph], Graph]]:
    """The flat step without DDP, and the function that puts the gradients of such a step into buckets again.

    Raises for a step that communicates anything else than gradients in buckets.
    """
    if not any(op.name == ALL_REDUCE for op in graph.ops):
        _check_not_distributed(list(graph.ops), what)
        return graph, lambda made: made
    step = DdpStep(graph)
    removed = {row for bucket in step.buckets for row in (bucket.row, *bucket.copy_back)}
    removed |= {one.fill for bucket in step.buckets for one in bucket.gradients}
    alone = step.graph_of((((row, 0), call) for row, call in enumerate(step.calls) if row not in removed), "")
    alone.notes.pop()
    _check_not_distributed(list(alone.ops), what)
    group = step.buckets[0].group
    ranks = tuple(graph.groups.get(group, ())) or tuple(range(graph.world))

    def share_again(made: Graph) -> Graph:
        draft = draft_of(replace(made, world=1), what)
        calls = share_gradients(draft, draft.calls, ProcessGroup(group, ranks), DEFAULT_BUCKET_MB)
        note = f"gradients are reduced in DDP's buckets of {DEFAULT_BUCKET_MB:g} MB"
        return draft.graph_of(calls, graph.rank, graph.world, note)

    return alone, share_again


def _check_not_distributed(ops: Sequence[Op], what: str) -> None:
    for row, op in enumerate(ops):
        if op.name.startswith(COLLECTIVE_CALLS) and op.phase != "other":
            raise ForetraceError(
                f"call {row}, {op.name}, communicates tensors whose size {what} changes",
                f"Set {what} on the step of one rank, and parallelize it after that.",
            )


class BucketedGradient(NamedTuple):
    """A gradient in a bucket, and the rows of the calls that copy it in, view the reduced one, and copy that back."""

    gradient: Tensor
    part: Tensor
    """Its place in the bucket."""
    fill: int
    view: int = -1
    copy: int = -1
    """-1 if the optimizer reads the bucket itself: DDP's ``gradient_as_bucket_view``."""


@dataclass
class Bucket:
    """Gradients that are reduced together."""

    buffer: Tensor
    row: int
    """The row of its all_reduce."""
    group: str
    gradients: list[BucketedGradient] = field(default_factory=list)
    wait: int = -1
    """The row at which the host waits for it; -1 for DDP's own reducer, which waits internally."""

    @property
    def filled(self) -> int:
        """The row after which it is full."""
        return max(one.fill for one in self.gradients)

    @property
    def copy_back(self) -> list[int]:
        """Rows of the calls that copy the reduced gradients back, in DDP's order."""
        rows = [self.wait, *(one.view for one in self.gradients), *(one.copy for one in self.gradients)]
        return [row for row in rows if row >= 0]


class DdpStep:
    """A step whose gradients are reduced in buckets."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.ops = editable_step(graph)
        collectives = {collective.op: collective for collective in self.graph.collectives}
        self.calls = [EditedCall(op, row, collectives.get(row)) for row, op in enumerate(self.ops)]
        self.buckets = list(_find_buckets(self.ops))
        if not self.buckets:
            raise ForetraceError(
                f"{graph.title} reduces no gradients in buckets, as DistributedDataParallel does",
                "Give a step under DistributedDataParallel, or make one of one rank's: --set data=8.",
            )
        for bucket in self.buckets:
            call = self.calls[bucket.row]
            ranks, buffer = self.graph.groups.get(bucket.group, ()), bucket.buffer
            call.collective = call.collective or Collective(
                "all_reduce", bucket.group, buffer.nbytes, -1, bucket.row, ranks, buffer.dtype
            )

    @property
    def overlapped(self) -> bool:
        """Whether a bucket is reduced while others are still being filled."""
        return len(self.buckets) == 1 or min(bucket.row for bucket in self.buckets) < self.filled

    @property
    def filled(self) -> int:
        """The row after which all buckets are full."""
        return max(bucket.filled for bucket in self.buckets)

    def graph_of(self, placed: Iterable[tuple[Position, EditedCall]], note: str) -> Graph:
        """The step with its calls at these positions; calls at the same position keep their order."""
        calls = [call for _, call in sorted(placed, key=lambda one: one[0])]
        made = reassemble(self.graph, self.ops, calls)
        made.collectives = [replace(call.collective, op=at) for at, call in enumerate(calls) if call.collective]
        made.notes.append(note)
        return made


def _find_buckets(ops: Sequence[Op]) -> Iterator[Bucket]:
    """The buckets of a step: each is an all_reduce of one flat tensor that was filled completely, part by part."""
    fills: dict[int, list[int]] = {}
    for row, op in enumerate(ops):
        if op.name in FILLS and (part := _filled_part(op)) is not None:
            fills.setdefault(part.storage, []).append(row)
        read = op.tensors
        if op.name != ALL_REDUCE or len(read) != 1 or len(read[0].shape) != 1:
            continue
        buffer, rows = read[0], fills.pop(read[0].storage, [])
        parts = [_filled_part(ops[fill]) for fill in rows]
        if sum(part.numel for part in parts if part is not None) == buffer.numel:
            yield _bucket(ops, buffer, row, rows)


def _bucket(ops: Sequence[Op], buffer: Tensor, row: int, fills: Sequence[int]) -> Bucket:
    group = next((one.value for one in ops[row].args if isinstance(one, Constant) and one.kind == "group"), "")
    work = next((one for one in ops[row].outputs if isinstance(one, Constant) and one.kind == "work"), None)
    views, copies, wait = dict[int, int](), dict[int, int](), -1
    for later in range(row + 1, len(ops)):
        op = ops[later]
        if op.name == WAIT and work in op.args:
            wait = later
        elif op.name in (ALL_REDUCE, VIEW, COPY) and (read := op.tensors[-1:]) and read[0].storage == buffer.storage:
            if op.name == ALL_REDUCE:
                break
            if op.name == COPY:
                copies[read[0].offset] = later
            elif op.produced:
                views[op.produced[0].offset] = later
    gradients = []
    for fill in fills:
        part, gradient = _filled_part(ops[fill]), ops[fill].tensors[1 if ops[fill].name == COPY else 0]
        assert part is not None
        at = part.offset
        gradients.append(BucketedGradient(gradient, part, fill, views.get(at, -1), copies.get(at, -1)))
    return Bucket(buffer, row, group, gradients, wait)


def _filled_part(op: Op) -> Tensor | None:
    """The tensor that a call fills from one in another storage; None if it does not."""
    tensors = op.tensors
    part = op.kwargs.get("out", tensors[0] if op.name == COPY and tensors else None)
    return part if isinstance(part, Tensor) and part.storage != tensors[-1 if op.name == COPY else 0].storage else None


@dataclass
class _NewBucket:
    """A bucket of another size: its gradients, and the offset of each."""

    gradients: list[BucketedGradient]
    buffer: Tensor
    offsets: list[int]
    like: Bucket
    work: Constant

    @classmethod
    def of(cls, gradients: list[BucketedGradient], like: Bucket, ids: UnusedIds) -> _NewBucket:
        """A bucket of these gradients, reduced as another one was."""
        offsets, end = [], 0
        for one in gradients:
            offsets.append(end)
            end += one.gradient.numel
        buffer = ids.tensor((end,), gradients[0].part.dtype, gradients[0].part.device)
        return cls(gradients, buffer, offsets, like, Constant("work", f"bucket.{buffer.id}"))


def _with_buckets(step: DdpStep, new: list[_NewBucket]) -> Iterator[tuple[Position, EditedCall]]:
    """All calls of the step, those on buckets changed to the new ones."""
    buffers = {bucket.buffer.storage for bucket in step.buckets}
    parts = sorted(
        (one.part.storage, one.part.offset, one.part.numel, bucket.buffer.storage, offset)
        for bucket in new
        for one, offset in zip(bucket.gradients, bucket.offsets)
    )

    def relocate(tensor: Tensor) -> Tensor:
        if tensor.storage not in buffers:
            return tensor
        storage, start, size, buffer, offset = parts[bisect(parts, (tensor.storage, tensor.offset, inf)) - 1]
        if storage != tensor.storage or tensor.offset + tensor.numel > start + size:
            raise LookupError
        return replace(tensor, storage=buffer, offset=offset + tensor.offset - start)

    back = [row for bucket in step.buckets for row in bucket.copy_back]
    replaced = {*back, *(bucket.row for bucket in step.buckets)}
    for row, call in enumerate(step.calls):
        if row not in replaced:
            try:
                op = with_tensors(call.op, relocate)
            except LookupError:
                raise ForetraceError(
                    f"a bucket can't be changed: call {row}, {call.op.name}, reads several of its gradients at once",
                    "Leave the buckets as they are.",
                ) from None
            yield (row, 0), replace(call, op=op)
    # After the last gradient: what copies the reduced gradients back, bucket by bucket.
    end = (max(step.filled, min(back, default=0) - 1), 1)
    for bucket in new:
        full = max(one.fill for one in bucket.gradients), 1
        yield full if step.overlapped else end, _all_reduce(step, bucket)
    origins = iter(sorted(back))  # in their old order, which determines when storages are freed
    for bucket in new:
        for op in _copy_back(step, bucket, relocate):
            yield end, EditedCall(op, next(origins, -1))


def _all_reduce(step: DdpStep, bucket: _NewBucket) -> EditedCall:
    call = step.calls[bucket.like.row]
    op = with_tensors(call.op, lambda _: bucket.buffer)
    op.outputs = tuple(bucket.work if _is_work(value) else value for value in op.outputs)
    assert call.collective is not None
    return EditedCall(op, collective=replace(call.collective, nbytes=bucket.buffer.nbytes))


def _copy_back(step: DdpStep, bucket: _NewBucket, relocate: Relocate) -> Iterator[Op]:
    """The calls that copy reduced gradients back, as DDP makes them: first a view of each, then the copies."""
    if bucket.like.wait >= 0:
        waits = step.ops[bucket.like.wait].__copy__()
        waits.args = tuple(bucket.work if _is_work(value) else value for value in waits.args)
        yield waits
    for one, offset in zip(bucket.gradients, bucket.offsets):
        if one.view >= 0:
            op = step.ops[one.view]
            view = op.__copy__()
            view.args = (bucket.buffer, *op.args[1:-1], offset)
            view.outputs = map_tensors(op.outputs, relocate)
            yield view
    for one in bucket.gradients:
        if one.copy >= 0:
            yield with_tensors(step.ops[one.copy], relocate)


def _is_work(value: Value) -> bool:
    return isinstance(value, Constant) and value.kind == "work"


def _when_full(step: DdpStep) -> dict[int, Position]:
    """Gradients are copied into their bucket when they are complete; the last one starts its all_reduce."""
    positions: dict[int, Position] = {}
    for bucket in step.buckets:
        for one in bucket.gradients:
            positions[one.fill] = _completed(step, one.fill, one.gradient.storage)
        last = max(bucket.gradients, key=lambda one: positions[one.fill])
        positions[bucket.row] = (positions[last.fill][0], 1 if positions[last.fill][1] == 0 else 2)
    return positions


def _completed(step: DdpStep, fill: int, gradient: int) -> Position:
    """Where a gradient is complete: after the last backward call that makes it, unless it is filled there already."""
    if step.ops[fill].phase == "backward" and step.ops[fill].node:
        return fill, 0
    made = [row for row in range(fill) if any(t.storage == gradient for t in step.ops[row].produced)]
    return (max(made), 1) if made else (fill, 0)
