"""The buckets in which DistributedDataParallel shares gradients: found in a step, to be filled or sent otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Collective, Graph
from foretrace.graph.op import Constant, Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.frees import refree
from foretrace.transforms.parallel.draft import Line
from foretrace.transforms.step import Row, assembled, flattened, opened

SHARES = "c10d::allreduce_"
FILLS = ("aten::mul", "aten::div", "aten::copy_")
JOINS = "fsdp::chunk_cat"
"""What brings gradients together for FSDP2's reduce_scatter."""
LOOK, COPY, WAIT = "aten::as_strided", "aten::copy_", "c10d::wait"


class Share(NamedTuple):
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
    shares: list[Share] = field(default_factory=list)
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


class SharedStep:
    """A step whose gradients are shared in buckets.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.ops = opened(graph)
        collectives = {collective.op: collective for collective in self.graph.collectives}
        self.lines = [Line(op, row, collectives.get(row)) for row, op in enumerate(self.ops)]
        self.buckets = list(_buckets(self.ops))
        if not self.buckets:
            raise ForetraceError(
                f"{graph.title} shares no gradients in buckets, as DistributedDataParallel does",
                "Give a step under DistributedDataParallel, or share that of one rank: --set data=8.",
            )
        for bucket in self.buckets:
            line = self.lines[bucket.row]
            ranks, room = self.graph.groups.get(bucket.group, ()), bucket.room
            line.collective = line.collective or Collective(
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

    def written(self, placed: Iterable[tuple[Place, Line]], note: str) -> Graph:
        """The step with its calls at these places; of calls at one place, the first comes first."""
        lines = [line for _, line in sorted(placed, key=lambda one: one[0])]
        rows = [Row(line.op, line.row) for line in lines]
        refree(rows, self.ops)
        seen = {tensor.storage for row in rows for tensor in row.op.tensors}
        gone = {bucket.room.storage for bucket in self.buckets} - seen
        storages = {number: storage for number, storage in self.graph.storages.items() if number not in gone}
        made = assembled(replace(self.graph, storages=storages), rows)
        made.collectives = [replace(line.collective, op=at) for at, line in enumerate(lines) if line.collective]
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
        shares.append(Share(_gradient(ops[fill]), part, fill, looks.get(part.offset, -1), copies.get(part.offset, -1)))
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


def gradient_group(graph: Graph) -> tuple[int, ...]:
    """Ranks that sum their gradients, in DDP's buckets or in FSDP2's shards; none where the step shows neither."""
    graph = flattened(graph)
    ops = list(graph.ops)
    named = {bucket.row: bucket.group for bucket in _buckets(ops)}
    scatters = any(op.name == JOINS for op in ops)
    for collective in graph.collectives:
        if collective.op in named or (scatters and collective.kind == "reduce_scatter"):
            return collective.ranks or graph.groups.get(collective.group, ())
    return graph.groups.get(next(iter(named.values()), ""), ())
