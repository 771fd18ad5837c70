"""A graph as a recording of the same step would be: dispatcher calls in order, none inside another."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeGuard

import numpy as np

from foretrace.graph import ForetraceError, Graph, OpTable, Tensor, Value
from foretrace.graph.dispatched import dispatched, owner
from foretrace.graph.tables import NODE, Ints

WRAPPED: dict[str, Value] = {"float64": 1.0, "int64": 1, "bool": True}
"""What stands for a number whose value a trace does not tell, by the dtype that PyTorch gives it."""


class Flat(NamedTuple):
    """A step's dispatcher calls, and where they came from."""

    calls: Graph
    """Without storages: these live by the rows of the graph that the calls came from."""
    rows: Ints
    """For each call, its row in that graph."""
    stream: Ints
    """For each call, the stream that was current."""


def flat(graph: Graph) -> Flat:
    """The graph's dispatcher calls alone, with the kernels, runtime calls and statistics that belong to them.

    >>> from foretrace.graph import Op
    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0)]))
    >>> [op.name for op in flat(trace).calls.ops]
    ['aten::t', 'aten::addmm']
    """
    check_order(graph)
    rows = dispatched(graph)
    place = owner(graph, rows)
    picked = [graph.ops[row] for row in rows.tolist()]
    nested = bool((graph.ops.parent[rows] >= 0).any())
    for row, op in zip(rows.tolist(), picked):
        op.parent, op.node = -1, op.node or _node(graph.ops, row)
        if nested:
            op.args = _with_numbers(op.args)
    ops = OpTable.of(picked)
    ops.kind = graph.ops.kind[rows]
    ops.detail = picked.__getitem__  # no copies: nobody else has them
    calls, kernels = replace(graph.calls), replace(graph.kernels)
    calls.op, kernels.op = place[calls.op], _owners(graph, place, rows)
    alone = replace(
        graph,
        ops=ops,
        calls=calls,
        kernels=kernels,
        collectives=[replace(c, op=int(place[c.op])) for c in graph.collectives],
        indices=[replace(i, op=int(place[i.op])) for i in graph.indices],
        storages={},
    )
    return Flat(alone, rows, np.array([op.stream for op in picked], np.int32))


def _owners(graph: Graph, place: Ints, rows: Ints) -> Ints:
    """The call of each kernel; what was launched between calls, inside an annotation, is the call's before it."""
    kernels = graph.kernels
    owners = place[kernels.op]
    between = np.flatnonzero((owners < 0) & (kernels.op >= 0) & (kernels.call >= 0))
    if len(between) and len(rows):
        launched = graph.calls.start[kernels.call[between]]
        owners[between] = np.maximum(np.searchsorted(graph.ops.start[rows], launched) - 1, 0)
    return owners


def _with_numbers(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Arguments with the numbers that a trace shows as tensors: ``x * 0.5`` is given a double without dimensions.

    >>> x = Tensor((4,), "float32", "cuda:0")
    >>> _with_numbers((x, Tensor((), "float64", "cpu")))[1]
    1.0
    """
    if not any(isinstance(value, Tensor) and value.shape for value in args):
        return args
    return tuple(WRAPPED.get(value.dtype, value) if _is_number(value) else value for value in args)


def _is_number(value: Value) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.shape and value.device in ("", "cpu")


def _node(ops: OpTable, row: int) -> str:
    """The autograd node around an op; empty where there is none."""
    row = int(ops.parent[row])
    while row >= 0 and ops.kind[row] != NODE:
        row = int(ops.parent[row])
    return ops.names[ops.name[row]] if row >= 0 else ""


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
