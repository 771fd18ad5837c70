"""Which rows of a graph are dispatcher calls as a recording holds them, and which of these each kernel belongs to.

A recording is flat: it holds what passed the dispatcher below autograd. A trace is nested: it also has the composite
ops above (aten::linear, which is a transposition and an addmm) and the internals below (the aten::empty in an addmm).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from foretrace.graph.graph import Graph
from foretrace.graph.op import SIDE_CALLS, Value, signature
from foretrace.graph.operators import EXCHANGES, collective_kind
from foretrace.graph.tables import CALL, COLLECTIVE, NODE, Ints, Longs, OpTable, distinct
from foretrace.graph.tensor import Tensor

COMPOSITES = Path(__file__).parent / "composite_ops.txt"
WRAPPED: dict[str, Value] = {"float64": 1.0, "int64": 1, "bool": True}
"""What stands for a number whose value a trace does not tell, by the dtype that PyTorch gives it."""


def dispatched(graph: Graph) -> Ints:
    """Rows of ``graph.ops`` that are dispatcher calls, in order.

    A recording and a sketch hold nothing else. A trace nests: composite ops, autograd nodes and annotations are left
    out for the calls inside them, and what happens inside a call is left out too. Something that launches device work
    outside any call, as a compiled kernel does, counts as a call.

    >>> from foretrace.graph import Op
    >>> trace = OpTable.of([
    ...     Op("aten::linear"), Op("aten::t", parent=0), Op("aten::transpose", parent=1), Op("aten::addmm", parent=0)])
    >>> dispatched(Graph(trace)).tolist()
    [1, 3]
    """
    ops = graph.ops
    nested = bool(((ops.parent >= 0) & (ops.kind == CALL)).any())
    whole = _whole(ops) if nested else _calls(ops)
    inside = _inside(ops.parent, whole)
    launching = np.zeros(len(ops), bool)
    launching[graph.kernels.op[graph.kernels.op >= 0]] = True
    return np.flatnonzero((whole | (launching & ~_holding(ops.parent, whole))) & ~inside).astype(np.int32)


def owner(graph: Graph, rows: Ints) -> Ints:
    """For each row of ``graph.ops`` the position in ``rows`` of the dispatcher call it belongs to; -1 for none.

    One entry more than there are rows, for "no op": index it with ``graph.kernels.op``.

    >>> from foretrace.graph import Op
    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::addmm", parent=0), Op("aten::empty", parent=1)]))
    >>> owner(trace, dispatched(trace)).tolist()
    [-1, 0, 0, -1]
    """
    position = np.full(len(graph.ops) + 1, -1, np.int32)
    position[rows] = np.arange(len(rows))
    result = position.tolist()
    for row, parent in enumerate(graph.ops.parent.tolist()):
        if result[row] < 0 <= parent:
            result[row] = result[parent]
    return np.array(result, np.int32)


def with_numbers(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Arguments with the numbers that a trace shows as tensors: ``x * 0.5`` is given a double without dimensions.

    >>> x = Tensor((4,), "float32", "cuda:0")
    >>> with_numbers((x, Tensor((), "float64", "cpu")))[1]
    1.0
    """
    if not any(isinstance(value, Tensor) and value.shape for value in args):
        return args
    return tuple(WRAPPED.get(value.dtype, value) if _is_number(value) else value for value in args)


def _is_number(value: Value) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.shape and value.device in ("", "cpu")


def nodes_of(ops: OpTable, rows: Ints) -> list[str]:
    """The autograd node around each of some ops; empty where there is none.

    >>> from foretrace.graph import Op
    >>> trace = OpTable.of([Op("MmBackward0"), Op("aten::linear", parent=0), Op("aten::mm", parent=1)])
    >>> trace.kind[0] = NODE
    >>> nodes_of(trace, np.array([0, 2]))
    ['', 'MmBackward0']
    """
    around = ops.parent[rows]
    while (further := (around >= 0) & (ops.kind[around] != NODE)).any():
        around[further] = ops.parent[around[further]]
    names = [*ops.names.items, ""]
    return [names[code] for code in np.where(around >= 0, ops.name[around], -1).tolist()]


def _calls(ops: OpTable) -> NDArray[np.bool_]:
    """Rows that passed the dispatcher: neither annotations nor calls that steer a stream, a storage or a work."""
    passes = ops.names.matching(lambda name: "::" in name and not name.startswith(SIDE_CALLS))
    return (ops.kind == CALL) & passes[ops.name] if len(ops) else np.zeros(0, bool)


def _whole(ops: OpTable) -> NDArray[np.bool_]:
    """Calls of a nested table that are not taken apart."""
    always, sometimes = composites()
    apart = ops.names.matching(always.__contains__)[ops.name]
    for code in np.flatnonzero(ops.names.matching(sometimes.__contains__)).tolist():
        # The overload that is taken apart calls one that is not, of much the same name: max calls maximum.
        stem = _stem(ops.names[code])
        alike = np.array([_stem(name).startswith(stem) for name in ops.names.items])
        inner = ops.parent[alike[ops.name] & (ops.parent >= 0)]
        apart[inner[ops.name[inner] == code]] = True
    accumulating, held = _accumulating(ops)
    return _calls(ops) & np.where(accumulating, held, ~apart & ~_casting(ops))


def _stem(name: str) -> str:
    return name.removeprefix("aten::").lstrip("_")


def _casting(ops: OpTable) -> NDArray[np.bool_]:
    """Calls that autocast holds back to cast their arguments first: the casts and the same call again are inside."""
    again, casts = np.zeros((2, len(ops)), bool)
    inner = np.flatnonzero(ops.parent >= 0)
    above = ops.parent[inner]
    again[above[ops.name[inner] == ops.name[above]]] = True
    casts[above[ops.names.matching("aten::to".__eq__)[ops.name[inner]]]] = True
    return again & casts


def _accumulating(ops: OpTable) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Calls with which autograd makes a gradient the parameter's own, and those of them that a recording holds.

    A recording holds no detach there, asks for the parts of a sparse gradient once, and puts them together in one call.
    """
    accumulates = ops.names.matching(lambda name: name.endswith("AccumulateGrad"))[ops.name]
    direct = (ops.parent >= 0) & accumulates[ops.parent]
    rows = np.flatnonzero(direct)
    _, first = np.unique(np.stack([ops.parent[rows], ops.name[rows]]), axis=1, return_index=True)
    held = np.zeros(len(ops), bool)
    held[rows[first]] = True
    return direct, held & ~ops.names.matching("aten::detach".__eq__)[ops.name]


def _inside(parents: Ints, whole: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each row is inside one that is whole: parents come first."""
    hides = whole.tolist()
    inside: list[bool] = []
    for parent in parents.tolist():
        inside.append(parent >= 0 and (hides[parent] or inside[parent]))
    return np.array(inside, bool)


def _holding(parents: Ints, whole: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each row has one inside it that is whole."""
    holding = np.zeros(len(parents), bool)
    above = distinct(parents[whole])
    while len(above := above[above >= 0]):
        holding[above] = True
        above = distinct(parents[above])
    return holding


@cache
def composites() -> tuple[frozenset[str], frozenset[str]]:
    """Names of ops that PyTorch always takes apart, and of those of which it takes some overloads apart.

    >>> always, sometimes = composites()
    >>> "aten::linear" in always, "aten::max" in sometimes, "aten::addmm" in always | sometimes
    (True, True, False)
    """
    lines = [line for line in COMPOSITES.read_text().splitlines() if not line.startswith("#")]
    sometimes = frozenset(line.split()[0] for line in lines if line.endswith(" sometimes"))
    return frozenset(lines) - {f"{name} sometimes" for name in sometimes}, sometimes


def asked_for(graph: Graph, rows: Ints | Longs) -> dict[int, int]:
    """The rows of the calls that ask for collectives which a backend, such as gloo, does on a thread of its own.

    Those are the calls of the same kind and turn.
    """
    ops, names = graph.ops, graph.ops.names
    done_by = {c.op for c in graph.collectives}
    asks = names.matching(lambda name: name.startswith(EXCHANGES) and "wait" not in name)
    free = [row for row in rows.tolist() if asks[ops.name[row]] and row not in done_by]
    turns: dict[str, Iterator[int]] = {}
    found = {}
    for number, collective in enumerate(graph.collectives):
        kind = collective.kind
        if collective.op < 0 or names[ops.name[collective.op]].startswith(EXCHANGES):
            continue
        if kind not in turns:
            turns[kind] = iter([row for row in free if collective_kind(names[ops.name[row]]) == kind])
        found[number] = next(turns[kind], -1)
    return {number: row for number, row in found.items() if row >= 0}


# --- was graph.seen: What the calls of a recorded step gave the device to do: an edit that leaves a call as it was may keep that.

Launched = tuple[tuple[str, float], ...]
"""Kernels in order, each with its microseconds."""


def seen_calls(graph: Graph) -> Mapping[Hashable, Launched]:
    """The kernels that each recorded call launched, by the signature of the call; nothing for a graph without kernels.

    Of calls that are alike, each kernel has its median time.

    >>> from foretrace.graph import OpTable
    >>> seen_calls(Graph(OpTable.of([])))
    {}
    """
    kernels, rows = graph.kernels, dispatched(graph)
    known = np.flatnonzero((kernels.op >= 0) & (kernels.kind != COLLECTIVE))
    if not len(known):
        return {}
    call = owner(graph, rows)[kernels.op[known]]
    launched: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for place in np.lexsort((kernels.start[known], call)).tolist():
        row = known[place]
        took = float(kernels.end[row] - kernels.start[row])
        launched[int(call[place])].append((kernels.names[kernels.name[row]], took))
    alike: dict[Hashable, list[list[tuple[str, float]]]] = defaultdict(list)
    for place, theirs in launched.items():
        if place >= 0:
            alike[signature(graph.ops[int(rows[place])])].append(theirs)
    return {key: _median(each) for key, each in alike.items()}


def _median(each: list[list[tuple[str, float]]]) -> Launched:
    """The median time of each kernel, over the repeats that launch as many as the first one does."""
    names = [name for name, _ in each[0]]
    times = [[us for _, us in one] for one in each if len(one) == len(names)]
    return tuple(zip(names, np.median(np.array(times), axis=0).tolist()))
