"""The dispatcher calls of a graph: in order, none inside another, as a recording of the same step has them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foretrace.analysis.deduced import deduce_copied_memory, deduce_list_dtypes, rename_old_gradients, uses_tf32
from foretrace.graph import PHASES, Collective, ForetraceError, Graph, Op, OpTable
from foretrace.graph.calls import autograd_nodes, dispatched, enclosing_calls, host_collective_calls, with_scalars
from foretrace.graph.tables import CALL, NODE, Ints, Longs, StorageTable, distinct

PRECISION = "matmul_precision"


class DispatchedCalls(NamedTuple):
    """A step's dispatcher calls, and where they came from."""

    calls: Graph
    """Without storages: these live by the rows of the graph that the calls came from."""
    rows: Ints
    """For each call, its row in that graph; for a launch outside of any call, the row before it."""
    stream: Ints
    """For each call, the stream that was current."""


def dispatched_calls(graph: Graph) -> DispatchedCalls:
    """The graph's dispatcher calls alone, with the kernels, runtime calls and statistics that belong to them.

    >>> from foretrace.graph import Op
    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0)]))
    >>> [op.name for op in dispatched_calls(trace).calls.ops]
    ['aten::t', 'aten::addmm']
    """
    check_order(graph)
    called = rows = dispatched(graph)
    place = enclosing_calls(graph, rows)
    picked = list(graph.ops.rows(rows))
    nested = bool((graph.ops.parent[rows] >= 0).any())
    for op, node in zip(picked, autograd_nodes(graph.ops, rows)):
        op.parent, op.node = -1, op.node or node
        if nested:
            op.args = with_scalars(op.args)
    calls, kernels = replace(graph.calls), replace(graph.kernels)
    calls.op, kernels.op = place[calls.op], place[kernels.op]
    kinds = graph.ops.kind[rows]
    communicate = np.array(sorted({c.kernel for c in graph.collectives if c.kernel >= 0}), np.int64)
    lost = communicate[(kernels.op[communicate] < 0) & (kernels.call[communicate] < 0)]
    loose = distinct(kernels.call[(kernels.op < 0) & (kernels.call >= 0)])
    if len(loose) or len(lost):
        launching, first = np.unique(graph.kernels.call, return_index=True)
        kernel = first[np.searchsorted(launching, loose)].tolist()
        launches = [_launch(graph, call, row) for call, row in zip(loose.tolist(), kernel)]
        both = [*picked, *launches, *_unrecorded_launches(graph, lost)]
        # Calls are in the order in which they started.
        starts = np.array([op.start_us for op in both])
        order = np.argsort(starts, kind="stable")
        new = np.empty(len(order) + 1, np.int32)
        new[order], new[-1] = np.arange(len(order)), -1
        calls.op, kernels.op, place = new[calls.op], new[kernels.op], new[place]
        calls.op[loose] = new[len(picked) : len(picked) + len(loose)]
        kernels.op = np.where((kernels.op < 0) & (kernels.call >= 0), calls.op[kernels.call], kernels.op)
        kernels.op[lost] = new[len(picked) + len(loose) : -1]
        before = np.searchsorted(graph.ops.start, starts[len(picked) :], "right") - 1
        rows = np.concatenate([rows, np.maximum(before, 0)])[order].astype(np.int32)
        kinds = np.concatenate([kinds, np.full(len(before), CALL, np.int8)])[order]
        picked = [both[at] for at in order.tolist()]
    rename_old_gradients(picked)
    deduce_list_dtypes(picked)
    deduce_copied_memory(picked, kernels)
    ops = OpTable.of(picked)
    ops.kind = kinds
    ops.detail = picked.__getitem__  # no copies: nothing else holds them
    settings = graph.settings
    if PRECISION not in settings and uses_tf32(picked, kernels):
        settings = {**settings, PRECISION: "high"}
    alone = replace(
        graph,
        settings=settings,
        ops=ops,
        calls=calls,
        kernels=kernels,
        collectives=_issued(graph, place, called, kernels.op),
        indices=[replace(i, op=int(place[i.op])) for i in graph.indices],
        storages=_pinned(graph),
    )
    return DispatchedCalls(alone, rows, np.array([op.stream for op in picked], np.int32))


def _pinned(graph: Graph) -> StorageTable:
    """The storages in page-locked memory, whose copies are fast; without lifetimes, as rows of ops have changed."""
    table = StorageTable.of(graph.storages)
    pinned = table.rows(table.pinned)
    unknown = np.full(len(pinned), -1)
    return replace(pinned, birth=unknown, death=unknown)


def _launch(graph: Graph, call: int, kernel: int) -> Op:
    """A launch outside of any dispatcher call, as one.

    It has the name of the runtime call for a CUDA or HIP graph, of the autograd node that launches it, else of its
    kernel.
    """
    calls, ops, kernels = graph.calls, graph.ops, graph.kernels
    name, around = calls.names[calls.name[call]], int(calls.op[call])
    if "GraphLaunch" not in name and around >= 0 and ops.kind[around] == NODE:
        name = ops.names[ops.name[around]]
    elif "GraphLaunch" not in name:
        name = kernels.names[kernels.name[kernel]]
    return Op(
        name,
        start_us=float(calls.start[call]),
        end_us=float(calls.end[call]),
        thread=int(calls.thread[call]),
        phase=PHASES[ops.phase[around]] if around >= 0 else "other",
        module=ops.modules[ops.module[around]] if around >= 0 else "",
    )


def _unrecorded_launches(graph: Graph, lost: Ints | Longs) -> list[Op]:
    """Calls for communication kernels whose launch the trace does not hold, each after that of the kernel before it.

    Work of any other kind may be an earlier step's; communication is what the step's other ranks wait for.
    """
    calls, kernels = graph.calls, graph.kernels
    known = np.flatnonzero(kernels.call >= 0)
    known = known[np.argsort(kernels.start[known], kind="stable")]
    ops = []
    for row in lost.tolist():
        at = int(np.searchsorted(kernels.start[known], kernels.start[row], "right")) - 1
        call = int(kernels.call[known[max(at, 0)]]) if len(known) else -1
        around = int(calls.op[call]) if call >= 0 else -1
        when = max(float(calls.end[call]), float(graph.ops.end[around]) if around >= 0 else 0.0) if call >= 0 else 0.0
        thread = int(calls.thread[call]) if call >= 0 else 0
        ops.append(Op(kernels.names[kernels.name[row]], start_us=when, end_us=when, thread=thread))
    return ops


def _issued(graph: Graph, place: Ints, rows: Ints, launching: Ints) -> list[Collective]:
    """The collectives with the calls that issue them: those around them, or that launch their kernels."""
    asked = host_collective_calls(graph, rows) if (place[[c.op for c in graph.collectives]] < 0).any() else {}
    found = []
    for number, c in enumerate(graph.collectives):
        issued = int(place[c.op] if place[c.op] >= 0 else place[asked.get(number, -1)])
        found.append(replace(c, op=int(launching[c.kernel]) if issued < 0 <= c.kernel else issued))
    return found


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
