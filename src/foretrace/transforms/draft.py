"""A step that is written anew: calls kept, changed, put between others, with tensors of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foretrace.graph import Collective, Constant, ForetraceError, Graph, Op, OpTable, Storage, Tensor
from foretrace.graph.calls import dispatched, recorded_kernels
from foretrace.graph.op import RESIZE
from foretrace.graph.tables import CallTable, KernelTable
from foretrace.graph.tensor import contiguous_strides, end_in_storage

KIND_OF_CALL = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_to_all": "c10d::alltoall_base_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
}


@dataclass(slots=True)
class Line:
    """One call of a draft."""

    op: Op
    row: int = -1
    """The row it has in the graph that the draft began with; -1 for a new call."""
    collective: Collective | None = None


@dataclass(frozen=True)
class Group:
    """Ranks that speak with each other, under a name.

    >>> Group("data", (0, 2, 4, 6)).size
    4
    """

    name: str
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many."""
        return len(self.ranks)


class Draft:
    """The calls of a graph in order, to be written anew.

    >>> draft = Draft(Graph(OpTable.of([Op("aten::relu", outputs=(Tensor((4,), "float32", id=7, storage=2),))])))
    >>> made = draft.tensor((2, 2), "float32", "cuda:0")
    >>> made.id, made.storage, made.stride
    (8, 3, (2, 1))
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        theirs = {c.op: c for c in graph.collectives}
        self.lines = [Line(op, row, theirs.get(row)) for row, op in enumerate(graph.ops)]
        tensors = [t for line in self.lines for t in (*line.op.tensors, *line.op.produced)]
        self._tensor = max((t.id for t in tensors), default=-1) + 1
        self._storage = max((t.storage for t in tensors), default=-1) + 1
        self._work = self._event = 0

    @property
    def ops(self) -> list[Op]:
        """The calls."""
        return [line.op for line in self.lines]

    def tensor(self, shape: Sequence[int], dtype: str, device: str) -> Tensor:
        """A new tensor with a storage of its own."""
        made = Tensor(tuple(shape), dtype, device, contiguous_strides(shape), 0, self._tensor, self._storage)
        self._tensor, self._storage = self._tensor + 1, self._storage + 1
        return made

    def view(self, of: Tensor, shape: Sequence[int], offset: int = 0) -> Tensor:
        """A new look at a tensor's storage."""
        made = replace(of, shape=tuple(shape), stride=contiguous_strides(shape), offset=offset, id=self._tensor)
        self._tensor += 1
        return made

    def reserve(self, parts: int) -> int:
        """Keep numbers free for so many copies of all tensors there are; how far apart the copies' numbers lie."""
        step = max(self._tensor, self._storage)
        self._tensor = self._storage = step * parts
        return step

    def again(self, tensor: Tensor) -> Tensor:
        """A tensor like another, elsewhere."""
        made = replace(tensor, id=self._tensor, storage=self._storage)
        self._tensor, self._storage = self._tensor + 1, self._storage + 1
        return made

    def collective(self, kind: str, group: Group, out: Tensor, given: Tensor, like: Op, peer: int = -1) -> Line:
        """A collective over tensors, called from where another call was made."""
        where, works = Constant("group", group.name), Constant("work", f"{group.name}.{self._work}")
        self._work += 1
        if kind in ("send", "recv"):
            args: tuple[Any, ...] = ([given], where, peer, 0)
        elif out.id == given.id:
            args = ([given], where, Constant("reduce_op", "sum"), None)
        else:
            args = (out, given, where, False)
        op = called(KIND_OF_CALL[kind], args, (out, works), like)
        sized = out if kind == "all_gather" else given
        said = Collective(kind, group.name, sized.nbytes, -1, -1, group.ranks, sized.dtype, peer)
        return Line(op, collective=said)

    def wait_for(self, collective: Line, like: Op) -> Line:
        """The host's word that what comes next needs a collective's result."""
        return Line(called("c10d::wait", (collective.op.outputs[-1],), (), like))

    def record(self, stream: int, like: Op) -> Line:
        """An event: what a stream was given so far."""
        event = Constant("event", f"parallel.{self._event}")
        self._event += 1
        steered = replace(like, stream=stream)
        return Line(called("cuda::event_record", (event, Constant("stream", str(stream))), (), steered))

    def await_event(self, stream: int, recorded: Line, like: Op) -> Line:
        """A stream does nothing more before an event has come to pass."""
        args = (Constant("stream", str(stream)), recorded.op.args[0])
        return Line(called("cuda::stream_wait_event", args, (), replace(like, stream=stream)))

    def after(self, stream: int, other: int, like: Op) -> list[Line]:
        """One stream waits for what another was given so far."""
        recorded = self.record(other, like)
        return [recorded, self.await_event(stream, recorded, like)]

    def graph_of(self, lines: Iterable[Line], rank: int, world: int, note: str) -> Graph:
        """The graph that some lines make."""
        return graph_of(self.graph, list(lines), rank, world, note)


def called(name: str, args: tuple[Any, ...], outputs: tuple[Any, ...], like: Op, **kwargs: Any) -> Op:
    """A call made where another one was: the same phase, thread, stream, module and autograd node.

    >>> made = called("aten::mul", (2.0,), (), like=Op("aten::mm", phase="backward", module="layers.3"))
    >>> made.name, made.phase, made.module
    ('aten::mul', 'backward', 'layers.3')
    """
    where = {n: getattr(like, n) for n in ("phase", "thread", "stream", "module", "node")}
    return Op(name, args, kwargs, outputs, "default", **where)


def empty(tensor: Tensor, like: Op) -> Op:
    """The call that makes room for a tensor.

    >>> empty(Tensor((4, 8), "float32"), like=Op("aten::mm")).args
    ([4, 8],)
    """
    kind = {"dtype": Constant("dtype", tensor.dtype), "device": Constant("device", tensor.device), "pin_memory": False}
    made = called("aten::empty", (list(tensor.shape),), (tensor,), like, **kind)
    made.overload = "memory_format"
    return made


def graph_of(graph: Graph, lines: list[Line], rank: int, world: int, note: str) -> Graph:
    """The graph of some lines, with the memory they take; what was measured of the step it came from is left behind,
    but for what the device did in calls that are still the same."""
    collectives = [replace(line.collective, op=row) for row, line in enumerate(lines) if line.collective]
    place = {line.row: row for row, line in enumerate(lines) if line.row >= 0}
    groups = {c.group: c.ranks for c in collectives}
    return replace(
        graph,
        ops=OpTable.of([line.op for line in lines]).untimed(),
        calls=CallTable.empty(),
        kernels=KernelTable.empty(),
        collectives=collectives,
        groups=graph.groups | groups,
        storages=storages_of([line.op for line in lines], graph.storages),
        indices=[replace(i, op=place[i.op]) for i in graph.indices if i.op in place],
        rank=rank,
        world=world,
        steps=[],
        marks=np.zeros(0),
        allocated=(),
        plain=type(graph.plain)(),
        notes=[*graph.notes, *filter(None, [note])],
    )


def storages_of(ops: Sequence[Op], before: dict[int, Storage]) -> dict[int, Storage]:
    """The storages that some calls read and make: how large, from when to when.

    >>> given, made = (Tensor((4,), "float32", id=number, storage=number) for number in (0, 1))
    >>> found = storages_of([Op("aten::relu", (given,), outputs=(made,))], {})
    >>> [(one.nbytes, one.birth) for one in found.values()]
    [(16, -1), (16, 0)]
    """
    found: dict[int, Storage] = {}
    for row, op in enumerate(ops):
        for storage in op.frees:
            if storage in found:
                found[storage].death = row
        if op.name == RESIZE and isinstance(op.args[1], int) and op.args[1] not in found:
            found[op.args[1]] = Storage(op.args[1], 0, "", row)
        for born, tensors in ((-1, op.tensors), (row, op.produced)):
            for tensor in tensors:
                if tensor.storage < 0:
                    continue
                known = found.setdefault(tensor.storage, Storage(tensor.storage, 0, tensor.device, born))
                known.nbytes, known.device = max(known.nbytes, end_in_storage(tensor)), tensor.device
    for storage, kept in before.items():
        # What no call of the step touches stays as it was: momenta of frozen weights, buffers.
        if storage not in found and kept.birth < 0:
            found[storage] = replace(kept)
    return found


def lines_of(graph: Graph, what: str) -> Draft:
    """The draft of a step of one rank; refused for one that is of several already, or that names no tensors.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with tensor ids.
    what
        What shall be done with it, for the message.

    >>> weight = Tensor((4, 4), "float32", id=0, storage=0)
    >>> draft = lines_of(Graph(OpTable.of([Op("aten::mm", (weight, weight))])), "data parallel")
    >>> [line.op.name for line in draft.lines]
    ['aten::mm']
    """
    if not len(graph.ops):
        raise ForetraceError(f"{graph.source or 'the graph'} holds no calls", "Record or sketch a training step.")
    first = next(iter(graph.collectives), None)
    if graph.world > 1 or first is not None:
        seen = f"it calls {first.kind} in group {first.group}" if first is not None else f"it is of {graph.world} ranks"
        raise ForetraceError(
            f"{graph.source or 'the graph'} is distributed already: {seen}",
            f"{what} starts from the step of one rank alone: sketch or record it without its process group.",
        )
    return Draft(replace(with_ids(graph), seen=recorded_kernels(graph)))


def with_ids(graph: Graph) -> Graph:
    """The graph's dispatcher calls; refused where it does not tell which tensors are one and the same.

    >>> given = Tensor((4,), "float32", id=0, storage=0)
    >>> len(with_ids(Graph(OpTable.of([Op("aten::relu", (given,)), Op("aten::abs", (given,), parent=0)]))).ops)
    1
    """
    rows = dispatched(graph) if bool((graph.ops.parent >= 0).any()) else None
    flat = graph if rows is None else replace(graph, ops=OpTable.of([_outermost(graph.ops[r]) for r in rows.tolist()]))
    if not any(t.id >= 0 for op in flat.ops for t in op.tensors):
        raise ForetraceError(
            f"{graph.source or 'the graph'} does not tell its tensors apart",
            "Sketch the step, or record it: a profiler's trace knows shapes only.",
        )
    return flat


def _outermost(op: Op) -> Op:
    op.parent = -1
    return op
