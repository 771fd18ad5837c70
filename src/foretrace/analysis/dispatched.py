"""The dispatcher calls of a graph: in order, none inside another, as a recording of the same step has them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Collective, ForetraceError, Graph, OpTable
from foretrace.graph.calls import autograd_nodes, dispatched, enclosing_calls, host_collective_calls, with_scalars
from foretrace.graph.tables import Ints


class DispatchedCalls(NamedTuple):
    """A step's dispatcher calls, and where they came from."""

    calls: Graph
    """Without storages: these live by the rows of the graph that the calls came from."""
    rows: Ints
    """For each call, its row in that graph."""
    stream: Ints
    """For each call, the stream that was current."""
    loose: NDArray[np.bool_]
    """For each kernel, whether it was launched between calls; it then belongs to the one before it."""


def dispatched_calls(graph: Graph) -> DispatchedCalls:
    """The graph's dispatcher calls alone, with the kernels, runtime calls and statistics that belong to them.

    >>> from foretrace.graph import Op
    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0)]))
    >>> [op.name for op in dispatched_calls(trace).calls.ops]
    ['aten::t', 'aten::addmm']
    """
    check_order(graph)
    rows = dispatched(graph)
    place = enclosing_calls(graph, rows)
    picked = list(graph.ops.rows(rows))
    nested = bool((graph.ops.parent[rows] >= 0).any())
    for op, node in zip(picked, autograd_nodes(graph.ops, rows)):
        op.parent, op.node = -1, op.node or node
        if nested:
            op.args = with_scalars(op.args)
    ops = OpTable.of(picked)
    ops.kind = graph.ops.kind[rows]
    ops.detail = picked.__getitem__  # no copies: nothing else holds them
    calls, kernels = replace(graph.calls), replace(graph.kernels)
    loose = (place[kernels.op] < 0) & (kernels.op >= 0) & (kernels.call >= 0)
    calls.op, kernels.op = place[calls.op], _owners(graph, place, rows, loose)
    alone = replace(
        graph,
        ops=ops,
        calls=calls,
        kernels=kernels,
        collectives=_issued(graph, place, rows),
        indices=[replace(i, op=int(place[i.op])) for i in graph.indices],
        storages={},
    )
    return DispatchedCalls(alone, rows, np.array([op.stream for op in picked], np.int32), loose)


def _issued(graph: Graph, place: Ints, rows: Ints) -> list[Collective]:
    """The collectives with the calls that issue them."""
    asked = host_collective_calls(graph, rows) if (place[[c.op for c in graph.collectives]] < 0).any() else {}
    return [
        replace(c, op=int(place[c.op] if place[c.op] >= 0 else place[asked.get(number, -1)]))
        for number, c in enumerate(graph.collectives)
    ]


def _owners(graph: Graph, place: Ints, rows: Ints, loose: NDArray[np.bool_]) -> Ints:
    """The call of each kernel; what was launched between calls, inside an annotation, is the call's before it."""
    kernels = graph.kernels
    owners = place[kernels.op]
    if loose.any() and len(rows):
        launched = graph.calls.start[kernels.call[loose]]
        owners[loose] = np.maximum(np.searchsorted(graph.ops.start[rows], launched) - 1, 0)
    return owners


def check_order(graph: Graph) -> None:
    """Refuse a graph in which an op is inside one that comes after it: no step runs so."""
    parents = graph.ops.parent
    wrong = np.flatnonzero(parents >= np.arange(len(parents)))
    if not len(wrong):
        return
    inner, outer = int(wrong[0]), int(parents[wrong[0]])
    names = graph.ops.names
    raise ForetraceError(
        f"op {inner} ({names[graph.ops.name[inner]]}) is inside op {outer} "
        f"({names[graph.ops.name[outer]] if outer < len(parents) else 'unknown'}), which does not come before it",
        f"{graph.source or 'The graph'} is damaged: record or export it again.",
    )
