"""Collectives that threads of the host do (gloo's): who asks for them, and who waits until they are done.

They become device work of a kind: a lane of their own that starts when a call asks for it, and that only who needs the
result waits for.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace

import numpy as np

from foretrace.forecast.dependencies import Pairs, pairs
from foretrace.forecast.host import Segments
from foretrace.forecast.waits import WAIT
from foretrace.graph import Constant, Graph, KernelTable, Names
from foretrace.graph.calls import host_collective_calls
from foretrace.graph.operators import C10D_CALLS
from foretrace.graph.tables import ANNOTATION, CALL, COLLECTIVE, Longs


def with_lanes(graph: Graph) -> Graph:
    """The graph with a kernel for each collective that a thread of the host did, owned by the call that asked for."""
    ops = graph.ops
    theirs = [n for n, c in enumerate(graph.collectives) if c.kernel < 0 <= c.op and np.isfinite(ops.start[c.op])]
    theirs = [n for n in theirs if not ops.names[ops.name[graph.collectives[n].op]].startswith(C10D_CALLS)]
    if not theirs:
        return graph
    rows = np.array([graph.collectives[n].op for n in theirs])
    calls = host_collective_calls(graph, np.flatnonzero(ops.kind == CALL))
    names = Names(list(graph.kernels.names.items))
    codes = [names.code(ops.names[ops.name[row]]) for row in rows.tolist()]
    nothing = np.zeros(len(rows), np.int64)
    added = KernelTable(
        name=np.array(codes, np.int32),
        start=ops.start[rows],
        end=ops.end[rows],
        stream=(ops.thread[rows] + graph.kernels.stream.max(initial=0) + 1).astype(np.int32),
        kind=np.full(len(rows), COLLECTIVE, np.int8),
        call=np.full(len(rows), -1, np.int32),
        op=np.array([calls.get(n, -1) for n in theirs], np.int32),
        nbytes=nothing,
        grid=nothing,
        block=nothing,
        names=names,
    )
    collectives = list(graph.collectives)
    for place, number in enumerate(theirs, len(graph.kernels)):
        collectives[number] = replace(collectives[number], kernel=place)
    table = replace(ops, kind=ops.kind.copy())
    table.kind[rows] = ANNOTATION  # their threads do nothing that the simulation does not do
    return replace(graph, ops=table, kernels=_joined(graph.kernels, added), collectives=collectives)


def without_lanes(graph: Graph) -> Graph:
    """The graph that `with_lanes` was given, its collectives at the times of their kernels."""
    ours = _of_host(graph)
    if not len(ours):
        return graph
    rows = {c.kernel: c.op for c in graph.collectives}
    ops = replace(graph.ops, start=graph.ops.start.copy(), end=graph.ops.end.copy())
    row = np.array([rows[kernel] for kernel in ours.tolist()])
    ops.start[row], ops.end[row] = graph.kernels.start[ours], graph.kernels.end[ours]
    stays = np.ones(len(graph.kernels), bool)
    stays[ours] = False
    collectives = [c if c.kernel < 0 or stays[c.kernel] else replace(c, kernel=-1) for c in graph.collectives]
    return replace(graph, ops=ops, kernels=graph.kernels.rows(stays), collectives=collectives)


def _of_host(graph: Graph) -> Longs:
    """Kernels that are collectives which a thread of the host does: they come last."""
    kernels = graph.kernels
    return np.flatnonzero((kernels.kind == COLLECTIVE) & (kernels.call < 0) & (kernels.op >= 0))


def _joined(one: KernelTable, other: KernelTable) -> KernelTable:
    columns = [f.name for f in fields(KernelTable) if f.name != "names"]
    return KernelTable(
        **{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in columns}, names=other.names
    )


def exchange_edges(graph: Graph, segments: Segments) -> tuple[Pairs, Pairs]:
    """Who asks for the host's collectives, (segment, kernel), and what waits for them, (kernel, segment)."""
    kernels, ours = graph.kernels, _of_host(graph)
    if not len(ours):
        nobody = np.zeros((0, 2), np.int32)
        return nobody, nobody
    first, last = np.full((2, len(graph.ops)), -1)
    order = np.flatnonzero(segments.op >= 0)
    last[segments.op[order]] = order
    first[segments.op[order[::-1]]] = order[::-1]
    asked = last[kernels.op[ours]]
    waiting = _waiting(graph, kernels.op[ours].tolist(), first)
    issued = pairs(asked[asked >= 0], ours[asked >= 0])
    return issued, pairs(ours[waiting >= 0], waiting[waiting >= 0])


def _waiting(graph: Graph, asking: list[int], first: Longs) -> Longs:
    """For collectives that some calls ask for, the first segment that waits for each; -1 for none.

    That is the first one after a wait for its work, or else of the first call that touches its data.
    """
    asked: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(asking):
        asked[row].append(number)
    waiting = np.full(len(asking), -1, np.int64)
    known_by: dict[object, set[int]] = defaultdict(set)
    due: set[int] = set()
    for row in np.flatnonzero(graph.ops.kind == CALL).tolist():
        op = graph.ops[row]
        if op.name == WAIT:
            due.update(*(known_by[value] for value in op.args if isinstance(value, Constant)))
        elif not op.name.startswith(C10D_CALLS):
            due.update(*(known_by[tensor.storage] for tensor in (*op.tensors, *op.produced)))
        if due and first[row] >= 0:
            waiting[[number for number in due if waiting[number] < 0]] = first[row]
            due.clear()
        if row in asked:
            works = {value for value in op.outputs if isinstance(value, Constant) and value.kind == "work"}
            for key in works.union(t.storage for t in (*op.tensors, *op.produced) if t.storage >= 0):
                known_by[key] = set(asked[row])
    return waiting
