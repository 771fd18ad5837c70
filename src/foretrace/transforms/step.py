"""A step taken apart to be edited, its calls in one flat list; and the graph of what became of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.graph.calls import autograd_nodes, dispatched, enclosing_calls, host_collective_calls, with_scalars
from foretrace.graph.execution_traces import CompletedTrace, lacks_overloads
from foretrace.graph.graph import Collective, Graph, Timings
from foretrace.graph.op import Op
from foretrace.graph.tables import SYNC, KernelTable, OpTable
from foretrace.graph.tensor import Storage, Tensor, contiguous_strides, end_in_storage
from foretrace.transforms.dataflow import Argument, Call, filled


@dataclass(slots=True)
class Row:
    """A call of an edited step, and the row of the step before that it comes from; -1 for a new one."""

    op: Op
    origin: int


def call_rows(graph: Graph) -> list[int]:
    """Rows of what a step does: dispatcher calls, and the calls between them that steer streams and storages."""
    rows = set(dispatched(graph).tolist())
    side = graph.ops.names.matching(lambda name: Op(name).is_side_call)
    rows.update(np.flatnonzero(side[graph.ops.name]).tolist() if len(graph.ops) else ())
    return sorted(rows)


def flattened(graph: Graph) -> Graph:
    """The step's calls alone, as a recording has them, with nothing that was measured of them.

    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0)]))
    >>> [op.name for op in flattened(trace).ops]
    ['aten::t', 'aten::addmm']
    """
    rows = call_rows(graph)
    ops = [graph.ops[row] for row in rows]
    groups, notes = graph.groups, list(graph.notes)
    nested = bool((graph.ops.parent[rows] >= 0).any()) if rows else False
    nodes = autograd_nodes(graph.ops, np.array(rows, np.int32)) if nested else []
    if lacks_overloads(ops) and any(tensor.id >= 0 for op in ops for tensor in op.tensors):
        tidied = CompletedTrace(graph, rows)
        ops, groups = tidied.ops, tidied.groups
        notes += tidied.notes
    for op, node in zip(ops, nodes):
        op.parent, op.node, op.args = -1, op.node or node, with_scalars(op.args)
    place = enclosing_calls(graph, np.array(rows, np.int32))
    graph = replace(graph, collectives=_asked(graph, rows, place.tolist()))
    made = assembled(graph, [Row(op, row) for op, row in zip(ops, rows)], place.tolist())
    return replace(made, groups=groups, notes=notes)


def opened(graph: Graph) -> tuple[Graph, list[Op]]:
    """A step to be edited: flat, and its calls in a list; refused where these do not say which tensors they take."""
    flat = flattened(graph)
    ops = list(flat.ops)
    needs_arguments(ops, graph.source)
    return flat, ops


def _asked(graph: Graph, rows: Sequence[int], place: Sequence[int]) -> list[Collective]:
    """The collectives; one that a backend such as gloo does on a thread of its own gets the call that asks for it."""
    if all(place[one.op] >= 0 for one in graph.collectives):
        return graph.collectives
    asked = host_collective_calls(graph, np.array(rows, np.int32))
    return [replace(one, op=asked.get(number, one.op)) for number, one in enumerate(graph.collectives)]


def assembled(graph: Graph, rows: Sequence[Row], place: Sequence[int] | None = None) -> Graph:
    """The graph of an edited step.

    Times of calls, kernels and steps are gone: nobody measured this one. Where the host waited it still does. Storages
    are born with the first call that makes them, and die where a call says that they are free.

    Parameters
    ----------
    graph
        The step before.
    rows
        The calls, each with the row that it comes from.
    place
        For each row of the graph, the place of its call among ``rows``, and one entry more for no row; found by the
        calls' origins where it is left out.
    """
    if place is None:
        found = [-1] * (len(graph.ops) + 1)
        for number, row in enumerate(rows):
            if row.origin >= 0 and found[row.origin] < 0:
                found[row.origin] = number
        place = found
    ops = [row.op for row in rows]
    calls = graph.calls.rows(graph.calls.kind == SYNC)
    calls.op = np.array([place[op] for op in calls.op.tolist()], np.int32)
    return replace(
        graph,
        ops=OpTable.of(ops).untimed(),
        calls=calls.rows(calls.op >= 0),
        kernels=KernelTable.empty(),
        collectives=[replace(c, op=place[c.op], kernel=-1) for c in graph.collectives if place[c.op] >= 0],
        indices=[replace(i, op=place[i.op]) for i in graph.indices if place[i.op] >= 0],
        storages=_storages(graph.storages, ops),
        steps=[],
        plain=Timings(),
        slowdown=1.0,
        marks=np.zeros(0),
        allocated=(),
        notes=list(graph.notes),
    )


def _storages(known: dict[int, Storage], ops: Sequence[Op]) -> dict[int, Storage]:
    """Storages by the calls that make, see and free them; those that no call ever sees stay as they were."""
    storages = {number: replace(was, death=-1) for number, was in known.items() if was.birth < 0}
    for row, op in enumerate(ops):
        for number in op.frees:
            if number in storages:
                storages[number].death = row
        given = op.tensors
        for tensor in (*given, *op.produced):
            number = tensor.storage
            if number < 0:
                continue
            storage = storages.get(number)
            if storage is None:
                was = known.get(number)
                # A compiler's kernel is given what it writes: that was born in the step before, and still is.
                born = row if was or all(number != other.storage for other in given) else -1
                storage = Storage(number, was.nbytes if was else 0, was.device if was else tensor.device, born)
                storages[number] = storage
            storage.nbytes = max(storage.nbytes, end_in_storage(tensor))
    return storages


def storages_in(ops: Iterable[Op]) -> set[int]:
    """Storages that calls see."""
    return {tensor.storage for op in ops for tensor in (*op.tensors, *op.produced)}


def needs_arguments(ops: Sequence[Op], source: str) -> None:
    """Refuse calls that do not say which tensors they take: those of a profiler's trace at best know shapes."""
    tensors = [tensor for op in ops for tensor in (*op.tensors, *op.produced)]
    if any(tensor.id >= 0 for tensor in tensors) if tensors else any(op.args or op.outputs for op in ops):
        return
    raise ForetraceError(
        f"{source or 'the trace'} does not hold its calls' arguments: a profiler trace alone never does",
        "Give the folder with the execution trace beside it, or record the job with foretrace record.",
    )


# --- was transforms.frees: When storages die in a step whose calls are others now.


def refree(
    rows: Sequence[Row], before: Sequence[Op], soon: Collection[int] = (), now: Mapping[int, int] | None = None
) -> None:
    """Free what the calls before freed, at the same place, but never while somebody still reads it.

    Parameters
    ----------
    rows
        The calls now.
    before
        The calls that the rows' origins count.
    soon
        Storages that are freed as soon as nobody reads them any more.
    now
        Storages that are part of another one now, which is freed with the last of them.
    """
    moved = now or {}
    last = {t.storage: place for place, row in enumerate(rows) for t in (*row.op.tensors, *row.op.produced)}
    place_of = _places(rows, len(before))
    ends = {storage: last[storage] + 1 for storage in soon if storage in last}
    for origin, op in enumerate(before):
        for freed in op.frees:
            storage = moved.get(freed, freed)
            if storage in last and storage not in soon:
                ends[storage] = max(place_of[origin], last[storage] + 1, ends.get(storage, 0))
    for row in rows:
        row.op.frees = ()
    for storage, place in ends.items():
        if place < len(rows):
            rows[place].op.frees += (storage,)


def _places(rows: Sequence[Row], count: int) -> list[int]:
    """For each row before, the place of the first call now that comes from it or from a later one."""
    places = [len(rows)] * count
    for place in range(len(rows) - 1, -1, -1):
        if rows[place].origin >= 0:
            places[rows[place].origin] = place
    for origin in range(count - 2, -1, -1):
        places[origin] = min(places[origin], places[origin + 1])
    return places


# --- was transforms.fresh: Numbers for tensors and storages that nobody has yet.


class Fresh:
    """Makes tensors that are new to a step.

    >>> x = Tensor((4,), "float32", id=7, storage=2)
    >>> made = Fresh([Op("aten::relu", (x,))]).tensor((2, 2), like=x)
    >>> made.id, made.storage, made.stride
    (8, 3, (2, 1))
    """

    def __init__(self, ops: Iterable[Op]) -> None:
        tensors = [tensor for op in ops for tensor in (*op.tensors, *op.produced)]
        self._tensor = max((tensor.id for tensor in tensors), default=-1)
        self._storage = max((tensor.storage for tensor in tensors), default=-1)

    def number(self) -> int:
        """The number of another tensor."""
        self._tensor += 1
        return self._tensor

    def storage(self) -> int:
        """The number of another storage."""
        self._storage += 1
        return self._storage

    def tensor(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A dense tensor with a storage of its own, of another's type and device."""
        return Tensor(shape, like.dtype, like.device, contiguous_strides(shape), 0, self.number(), self.storage())

    def view(self, of: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Another look at a tensor without gaps."""
        return replace(of, shape=shape, stride=contiguous_strides(shape), id=self.number())


# --- was transforms.script: A flat step written again over other tensors.


class Retyped(NamedTuple):
    """A call with other arguments."""

    call: Call
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]


class Script:
    """A flat step that is written again and again over other tensors; what stays the same is worked out once.

    Parameters
    ----------
    graph
        The step.
    calls
        All its calls.
    moving
        Those of them whose tensors may be others.
    """

    def __init__(self, graph: Graph, calls: Sequence[Call], moving: Sequence[Call]) -> None:
        self._known = graph.storages
        self._template = assembled(graph, [Row(call.op, call.row) for call in calls])
        self._ops = [call.op for call in calls]
        places = {call.row: place for place, call in enumerate(calls)}
        self._places = [places[call.row] for call in moving]
        still = set(range(len(calls))) - set(self._places)
        self._still = reaches(self._ops[place] for place in still)
        self._was = _largest(self._still, reaches(call.op for call in moving))

    def over(self, moving: Sequence[Retyped], tensors: dict[int, Tensor]) -> Graph:
        """The graph of the same calls, with what the slots of the moving ones hold now."""
        changed = [_changed(*call, tensors) for call in moving]
        ops = list(self._ops)
        for place, op in zip(self._places, changed):
            ops[place] = op
        now, like = _largest(self._still, reaches(changed)), self._template
        return replace(
            like,
            ops=replace(like.ops, detail=lambda row: ops[row].__copy__()),
            storages={n: self._sized(storage, now.get(n, 0)) for n, storage in like.storages.items()},
            notes=list(like.notes),
        )

    def _sized(self, storage: Storage, now: int) -> Storage:
        """A storage of which calls now see so many bytes; one that was larger than what they saw stays so in
        proportion."""
        was, known = self._was.get(storage.id, 0), self._known.get(storage.id)
        nbytes = known.nbytes if known else 0
        if was and was != now:
            nbytes = round(nbytes * now / was)
        return Storage(storage.id, max(nbytes, now), storage.device, storage.birth, storage.death)


def _largest(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {**one, **{number: max(size, one.get(number, 0)) for number, size in other.items()}}


def _changed(call: Call, args: tuple[Argument, ...], kwargs: dict[str, Argument], tensors: dict[int, Tensor]) -> Op:
    """The op with what its slots hold now; each tensor keeps its own number."""
    given, made = iter(call.op.tensors), iter(call.op.produced)

    def now(old: Tensor, slot: int) -> Tensor:
        is_ = tensors[slot]
        if look_of(is_) == look_of(old):
            return old
        return Tensor(is_.shape, is_.dtype, old.device, is_.stride, is_.offset, old.id, old.storage, old.layout)

    new = call.op.__copy__()
    new.args = tuple(filled(list(args), lambda slot: now(next(given), slot)))
    new.kwargs = filled(kwargs, lambda slot: now(next(given), slot))
    new.outputs = tuple(filled(list(call.results), lambda slot: now(next(made), slot)))
    return new


def look_of(tensor: Tensor) -> tuple[object, ...]:
    """How a tensor looks, and where in its storage it begins: equal for one that stays as it was."""
    return tensor.shape, tensor.stride, tensor.offset, tensor.dtype


def reaches(ops: Iterable[Op]) -> dict[int, int]:
    """For each storage that calls see, the bytes up to the last element of it that any of them sees."""
    largest: dict[int, int] = {}
    for op in ops:
        for tensor in (*op.tensors, *op.produced):
            if tensor.storage >= 0:
                largest[tensor.storage] = max(largest.get(tensor.storage, 0), end_in_storage(tensor))
    return largest
