"""Dispatcher calls of a graph: which rows they are, which kernels they launched, which collectives they started.

A recording is flat: it holds the calls that pass the dispatcher below autograd. A trace is nested: it also has the
composite ops above them (aten::linear, which is a transposition and an addmm) and the internals below (the aten::empty
in an addmm). The functions here reduce both to the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrace.graph.graph import Collective, Graph
from foretrace.graph.op import GENERATED_KERNELS, SIDE_CALLS, Constant, Op, Tensor, Value, signature, tensors_in
from foretrace.graph.operators import C10D_CALLS, COLLECTIVE_CALLS, collective_kind
from foretrace.graph.tables import CALL, COLLECTIVE, NODE, Ints, Longs, OpTable, distinct, nested_in

COMPOSITE_OPS = Path(__file__).parent / "composite_ops.txt"
SCALAR_VALUES: dict[str, Value] = {"float64": 1.0, "int64": 1, "bool": True}
"""Stands for a Python scalar whose value a trace lacks, by the dtype that PyTorch gives the scalar."""

Mask: TypeAlias = NDArray[np.bool_]
Launched: TypeAlias = tuple[tuple[str, float], ...]
"""Kernels in order, each with its microseconds."""


def dispatched(graph: Graph) -> Ints:
    """Rows of ``graph.ops`` that are dispatcher calls, in order.

    All rows of a recording or a sketch are. In a trace, composite ops, autograd nodes and annotations are skipped in
    favour of the calls inside them, and so is what happens inside a call. A row that launches device work outside any
    call, as a compiled kernel does, counts as a call.

    >>> from foretrace.graph import Op
    >>> trace = OpTable.of([
    ...     Op("aten::linear"), Op("aten::t", parent=0), Op("aten::transpose", parent=1), Op("aten::addmm", parent=0)])
    >>> dispatched(Graph(trace)).tolist()
    [1, 3]
    """
    ops = graph.ops
    nested = bool(((ops.parent >= 0) & (ops.kind == CALL)).any())
    calls = _leaf_calls(ops) if nested else _calls(ops)
    inside = nested_in(calls, ops.parent)
    launching = np.zeros(len(ops), bool)
    launching[graph.kernels.op[graph.kernels.op >= 0]] = True
    return np.flatnonzero((calls | (launching & ~_around(ops.parent, calls))) & ~inside).astype(np.int32)


def enclosing_calls(graph: Graph, rows: Ints) -> Ints:
    """For each row of ``graph.ops`` the position in ``rows`` of the dispatcher call it is part of; -1 for none.

    Has one more entry than there are rows, for "no op", so that it can be indexed with ``graph.kernels.op``.

    >>> from foretrace.graph import Op
    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::addmm", parent=0), Op("aten::empty", parent=1)]))
    >>> enclosing_calls(trace, dispatched(trace)).tolist()
    [-1, 0, 0, -1]
    """
    position = np.full(len(graph.ops) + 1, -1, np.int32)
    position[rows] = np.arange(len(rows))
    result = position.tolist()
    for row, parent in enumerate(graph.ops.parent.tolist()):
        if result[row] < 0 <= parent:
            result[row] = result[parent]
    return np.array(result, np.int32)


def autograd_nodes(ops: OpTable, rows: Ints) -> list[str]:
    """The name of the autograd node around each of some ops; empty where there is none.

    >>> from foretrace.graph import Op
    >>> trace = OpTable.of([Op("MmBackward0"), Op("aten::linear", parent=0), Op("aten::mm", parent=1)])
    >>> trace.kind[0] = NODE
    >>> autograd_nodes(trace, np.array([0, 2]))
    ['', 'MmBackward0']
    """
    around = ops.parent[rows]
    while (further := (around >= 0) & (ops.kind[around] != NODE)).any():
        around[further] = ops.parent[around[further]]
    names = [*ops.names.items, ""]
    return [names[code] for code in np.where(around >= 0, ops.name[around], -1).tolist()]


def with_scalars(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Arguments with a number for each scalar that a trace shows as a tensor: of ``x * 0.5``, a 0-dim float64 tensor.

    >>> x = Tensor((4,), "float32", "cuda:0")
    >>> with_scalars((x, Tensor((), "float64", "cpu")))[1]
    1.0
    """
    if not any(isinstance(value, Tensor) and value.shape for value in args):
        return args
    return tuple(
        SCALAR_VALUES.get(value.dtype, value)
        if isinstance(value, Tensor) and not value.shape and value.device in ("", "cpu")
        else value
        for value in args
    )


def host_collective_calls(graph: Graph, rows: Ints | Longs) -> dict[int, int]:
    """The rows that start the collectives which a backend such as gloo runs on a thread of its own.

    By the position of the collective in ``graph.collectives``; matched by kind and order.
    """
    ops, names = graph.ops, graph.ops.names
    performing = {c.op for c in graph.collectives}
    starts = names.matching(lambda name: name.startswith(C10D_CALLS) and "wait" not in name)
    free = [row for row in rows.tolist() if starts[ops.name[row]] and row not in performing]
    by_kind: dict[str, Iterator[int]] = {}
    found = {}
    for number, collective in enumerate(graph.collectives):
        kind = collective.kind
        if collective.op < 0 or names[ops.name[collective.op]].startswith(C10D_CALLS):
            continue
        if kind not in by_kind:
            by_kind[kind] = iter([row for row in free if collective_kind(names[ops.name[row]]) == kind])
        found[number] = next(by_kind[kind], -1)
    return {number: row for number, row in found.items() if row >= 0}


def recorded_kernels(graph: Graph) -> Mapping[Hashable, Launched]:
    """The kernels that each recorded call launched, by the call's `signature`; empty for a graph without kernels.

    A transform that leaves a call unchanged can keep its measured kernel times. Over calls of equal signature, each
    kernel has its median time.

    >>> from foretrace.graph import OpTable
    >>> recorded_kernels(Graph(OpTable.of([])))
    {}
    """
    kernels, rows = graph.kernels, dispatched(graph)
    known = np.flatnonzero((kernels.op >= 0) & (kernels.kind != COLLECTIVE))
    if not len(known):
        return {}
    call = enclosing_calls(graph, rows)[kernels.op[known]]
    launched: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for place in np.lexsort((kernels.start[known], call)).tolist():
        row = known[place]
        took = float(kernels.end[row] - kernels.start[row])
        launched[int(call[place])].append((kernels.names[kernels.name[row]], took))
    repeats: dict[Hashable, list[list[tuple[str, float]]]] = defaultdict(list)
    for place, of_call in launched.items():
        if place >= 0:
            repeats[signature(graph.ops[int(rows[place])])].append(of_call)
    return {key: _median(each) for key, each in repeats.items()}


def _median(repeats: list[list[tuple[str, float]]]) -> Launched:
    """The median time of each kernel, over the repeats with as many kernels as the first."""
    names = [name for name, _ in repeats[0]]
    times = [[us for _, us in one] for one in repeats if len(one) == len(names)]
    return tuple(zip(names, np.median(np.array(times), axis=0).tolist()))


def _calls(ops: OpTable) -> Mask:
    """Rows that passed the dispatcher, or launched a generated kernel: neither annotations nor side calls."""

    def is_call(name: str) -> bool:
        return ("::" in name and not name.startswith(SIDE_CALLS)) or name.startswith(GENERATED_KERNELS)

    passes = ops.names.matching(is_call)
    return (ops.kind == CALL) & passes[ops.name] if len(ops) else np.zeros(0, bool)


def _leaf_calls(ops: OpTable) -> Mask:
    """Calls of a nested table that PyTorch does not decompose into others."""
    always, sometimes = composites()
    decomposed = ops.names.matching(always.__contains__)[ops.name]
    for code in np.flatnonzero(ops.names.matching(sometimes.__contains__)).tolist():
        # The overload that is decomposed calls one that is not, of a similar name: max calls maximum.
        stem = _stem(ops.names[code])
        similar = np.array([_stem(name).startswith(stem) for name in ops.names.items])
        inner = ops.parent[similar[ops.name] & (ops.parent >= 0)]
        decomposed[inner[ops.name[inner] == code]] = True
    accumulating, recorded = _accumulating(ops)
    return _calls(ops) & np.where(accumulating, recorded, ~decomposed & ~_autocast_wrappers(ops))


def _stem(name: str) -> str:
    return name.removeprefix("aten::").lstrip("_")


def _autocast_wrappers(ops: OpTable) -> Mask:
    """Calls that autocast intercepts to cast their arguments: the casts and the same call again are inside."""
    again, casts = np.zeros((2, len(ops)), bool)
    inner = np.flatnonzero(ops.parent >= 0)
    above = ops.parent[inner]
    again[above[ops.name[inner] == ops.name[above]]] = True
    casts[above[ops.names.matching("aten::to".__eq__)[ops.name[inner]]]] = True
    return again & casts


def _accumulating(ops: OpTable) -> tuple[Mask, Mask]:
    """Calls directly inside AccumulateGrad nodes, and those of them that a recording has.

    A recording has no detach there, reads the parts of a sparse gradient once, and constructs it in one call.
    """
    accumulates = ops.names.matching(lambda name: name.endswith("AccumulateGrad"))[ops.name]
    direct = (ops.parent >= 0) & accumulates[ops.parent]
    rows = np.flatnonzero(direct)
    _, first = np.unique(np.stack([ops.parent[rows], ops.name[rows]]), axis=1, return_index=True)
    recorded = np.zeros(len(ops), bool)
    recorded[rows[first]] = True
    return direct, recorded & ~ops.names.matching("aten::detach".__eq__)[ops.name]


def _around(parents: Ints, calls: Mask) -> Mask:
    """Whether each row has a call inside it."""
    around = np.zeros(len(parents), bool)
    above = distinct(parents[calls])
    while len(above := above[above >= 0]):
        around[above] = True
        above = distinct(parents[above])
    return around


@cache
def composites() -> tuple[frozenset[str], frozenset[str]]:
    """Names of ops that PyTorch always decomposes, and of those of which it decomposes some overloads.

    >>> always, sometimes = composites()
    >>> "aten::linear" in always, "aten::max" in sometimes, "aten::addmm" in always | sometimes
    (True, True, False)
    """
    lines = [line for line in COMPOSITE_OPS.read_text().splitlines() if not line.startswith("#")]
    sometimes = frozenset(line.split()[0] for line in lines if line.endswith(" sometimes"))
    return frozenset(lines) - {f"{name} sometimes" for name in sometimes}, sometimes


BY_OUTPUT = ("all_gather", "gather")
"""Kinds whose size is that of the result; the others' is that of what is given (nccl-tests' convention)."""


def collectives_of(ops: Sequence[Op], groups: dict[str, tuple[int, ...]]) -> list[Collective]:
    """Each collective a step calls, in order, with its group, kind and size.

    >>> given = Tensor((1024,), "float32", id=0)
    >>> call = Op("c10d::allreduce_", ([given], Constant("group", "0"), Constant("reduce_op", "sum")))
    >>> found, = collectives_of([call], {"0": (0, 1)})
    >>> found.kind, found.nbytes, found.ranks
    ('all_reduce', 4096, (0, 1))
    """
    found = []
    for row, op in enumerate(ops):
        kind = collective_kind(op.name) if op.name.startswith(COLLECTIVE_CALLS) else ""
        if kind:
            group = _group(op)
            ranks = tuple(groups.get(group, ()))
            tensors = _sized(op, kind, len(ranks))
            found.append(
                Collective(
                    kind=kind,
                    group=group,
                    nbytes=sum(t.nbytes for t in tensors),
                    kernel=-1,
                    op=row,
                    ranks=ranks,
                    dtype=tensors[0].dtype if tensors else "",
                    peer=_peer(op, kind, ranks),
                )
            )
    return found


def _peer(op: Op, kind: str, ranks: tuple[int, ...]) -> int:
    """The rank at the other end of a send or a recv, which the call names by its place in the group."""
    place = next((value for value in op.args if type(value) is int), -1)
    return ranks[place] if kind in ("send", "recv") and 0 <= place < len(ranks) else -1


def _group(op: Op) -> str:
    named = [value.value for value in op.args if isinstance(value, Constant) and value.kind == "group"]
    texts = [value for value in op.args if isinstance(value, str)]  # functional ones name their group in plain text
    return named[0] if named else texts[-1] if texts else ""


def _sized(op: Op, kind: str, ranks: int) -> list[Tensor]:
    """The tensors whose bytes are the collective's size."""
    first, second = (list(tensors_in(value)) for value in (*op.args, None, None)[:2])
    if not op.name.startswith("c10d::"):
        return op.produced if kind in BY_OUTPUT else first
    if kind in ("gather", "scatter"):
        whole, part = (first, second) if kind == "gather" else (second, first)
        return whole or part * ranks  # only the root has the whole
    # In place: (outputs, inputs, …), or (what is changed, …).
    return first if kind in BY_OUTPUT or not second else second
