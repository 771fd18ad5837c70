"""A step taken apart to be edited, its calls in one flat list; and the graph of what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.graph.collectives import asked_for
from foretrace.graph.dispatched import dispatched, nodes_of, owner, with_numbers
from foretrace.graph.errors import ForetraceError
from foretrace.graph.foreign import Tidied, is_foreign
from foretrace.graph.graph import Collective, Graph, Timings
from foretrace.graph.op import Op
from foretrace.graph.tables import SYNC, KernelTable, OpTable
from foretrace.graph.tensor import Storage
from foretrace.transforms.layout import reach


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
    nodes = nodes_of(graph.ops, np.array(rows, np.int32)) if nested else []
    if is_foreign(ops) and any(tensor.id >= 0 for op in ops for tensor in op.tensors):
        tidied = Tidied(graph, rows)
        ops, groups = tidied.ops, tidied.groups
        notes += tidied.notes
    for op, node in zip(ops, nodes):
        op.parent, op.node, op.args = -1, op.node or node, with_numbers(op.args)
    place = owner(graph, np.array(rows, np.int32))
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
    asked = asked_for(graph, np.array(rows, np.int32))
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
            storage.nbytes = max(storage.nbytes, reach(tensor))
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
