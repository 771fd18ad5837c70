"""The call tree of host ops: nesting from start and end times, and the kind and phase of each row.

On one thread, intervals nest: the parent of an op is the innermost op around it.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import PHASES, Names, OpTable, Span
from foretrace.graph.tables import (
    ANNOTATION,
    CALL,
    FUNCTION,
    NODE,
    ActivityTable,
    Floats,
    Ints,
    Small,
    below,
    distinct,
)

ROUNDING_US = 1.0
"""How far an event may stick out of the event around it when timestamps are whole microseconds."""
FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
BACKWARD_SCOPE, USER_SCOPE = 1, 7
"""Two of PyTorch's record scopes: an autograd node, and a user's annotation."""
STEP_MARK = re.compile(r"ProfilerStep#\d+$")
"""Names of the annotations with which the profiler marks steps."""
ANNOTATIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)")
"""How the names begin of what PyTorch itself annotates."""
_AUTOGRAD = re.compile(r"autograd::engine::|torch::autograd::|\w+Backward\d*$")
_NAMED_PHASES = (
    (FORWARD, re.compile(r"\(F\)$|^\W*forward\W*$")),
    (BACKWARD, re.compile(r"\([BW]\)$|^\W*backward\W*$")),
    (OPTIMIZER, re.compile(r"^\W*optimizer(_step)?\W*$")),
    (
        OTHER,
        re.compile(
            r"^enumerate\(DataLoader\)|^next\([\w.]*(data|loader|batch|iter)\w*\)$|"
            r"(?i:^\W*(data[ _]?load(er|ing)?|(load|fetch|get|next)[ _]?(data|batch))\W*$)"
        ),
    ),
)
"""What annotations call the phases: those of pipeline schedules are (F), (B) for inputs and (W) for weights. What loads
data is no part of the forward.
"""


def call_order(start: Floats, end: Floats, number: NDArray[np.int64] | None = None) -> NDArray[np.intp]:
    """Rows by start time, the longer of two that start together first: a parent comes before its children.

    Where the profiler numbered calls, the number decides first between two that start together, which is frequent with
    timestamps of whole microseconds.

    >>> call_order(np.array([5.0, 0.0, 0.0]), np.array([6.0, 2.0, 9.0])).tolist()
    [2, 1, 0]
    >>> call_order(np.array([0.0, 0.0]), np.array([1.0, 0.0]), np.array([8, 7])).tolist()
    [1, 0]
    """
    return np.lexsort((-end, start) if number is None else (-end, number, start))


def parents(thread: Ints, start: Floats, end: Floats) -> Ints:
    """For rows in call order, the innermost row around each on its thread; -1 for none.

    >>> parents(np.zeros(3, np.int32), np.array([0.0, 1.0, 5.0]), np.array([9.0, 4.0, 6.0])).tolist()
    [-1, 0, 0]
    """
    parent = np.full(len(start), -1, np.int32)
    for code in distinct(thread):
        rows = np.flatnonzero(thread == code)
        parent[rows] = _nested(rows.tolist(), start[rows].tolist(), end[rows].tolist())
    return parent


def _nested(rows: list[int], starts: list[float], ends: list[float]) -> list[int]:
    found: list[int] = []
    around: list[tuple[int, float]] = []
    inside, limit = -1, np.inf  # the innermost open row, and where it ends
    for row, start, end in zip(rows, starts, ends):
        while limit <= start:
            inside, limit = around.pop()
        found.append(inside)
        around.append((inside, limit))
        inside = row
        # A row that sticks out by rounding must not seem to contain what comes after its parent.
        if not limit < end <= limit + ROUNDING_US:
            limit = end
    return found


def innermost(thread: Ints, start: Floats, end: Floats, parent: Ints, at_thread: Ints, at: Floats) -> Ints:
    """The innermost row open on a thread at a time; -1 for none. Rows are in call order.

    >>> rows = np.zeros(2, np.int32), np.array([0.0, 1.0]), np.array([9.0, 4.0]), np.array([-1, 0], np.int32)
    >>> innermost(*rows, np.zeros(3, np.int32), np.array([2.0, 5.0, 20.0])).tolist()
    [1, 0, -1]
    """
    found = np.full(len(at), -1, np.int32)
    for code in distinct(at_thread):
        rows, asked = np.flatnonzero(thread == code), np.flatnonzero(at_thread == code)
        if not len(rows):
            continue
        before = np.searchsorted(start[rows], at[asked], side="right") - 1
        row = np.where(before >= 0, rows[before], -1)
        # Timestamps of whole microseconds put an op's last call at the very end of the op: it counts as inside where
        # nothing else is open.
        ending = np.full(len(asked), -1)
        closed = np.flatnonzero((row >= 0) & (end[row] <= at[asked]))
        while len(closed):
            touched = closed[(end[row[closed]] == at[asked[closed]]) & (ending[closed] < 0)]
            ending[touched] = row[touched]
            row[closed] = parent[row[closed]]
            closed = closed[(row[closed] >= 0) & (end[row[closed]] <= at[asked[closed]])]
        found[asked] = np.where(row >= 0, row, ending)
    return found


def kinds_by_name(ops: OpTable) -> Small:
    """Kinds of a profiler trace's rows: it files autograd nodes and some annotations as dispatcher calls."""
    call = ops.kind == CALL
    bare = _bare(ops.names)[ops.name] & _have_children(ops.parent[call], len(ops))
    annotation = ops.names.matching(lambda name: name.startswith(ANNOTATIONS))[ops.name]
    kind = ops.kind.copy()
    kind[call & (_autograd(ops.names)[ops.name] | bare)] = NODE
    kind[call & annotation] = ANNOTATION
    return kind


def kinds_by_scope(names: Names, name: Ints, scope: Ints, parent: Ints) -> Small:
    """Kinds of an execution trace's rows, from their names and record scopes.

    >>> kinds_by_scope(Names(["step", "aten::mm"]), np.array([0, 1]), np.array([7, 0]), np.array([-1, 0])).tolist()
    [2, 0]
    """
    bare = _bare(names)[name] & _have_children(parent, len(name))
    kind = np.full(len(name), CALL, np.int8)
    kind[_autograd(names)[name] | (scope == BACKWARD_SCOPE) | bare] = NODE
    kind[scope == USER_SCOPE] = ANNOTATION
    return kind


def _have_children(parent: Ints, count: int) -> NDArray[np.bool_]:
    """Which of so many rows are among the parents."""
    have = np.zeros(count, bool)
    have[parent[parent >= 0]] = True
    return have


def _bare(names: Names) -> NDArray[np.bool_]:
    """Names without a namespace: of annotations and nodes, if there are calls inside them."""
    return names.matching(lambda name: "::" not in name and name != "record_param_comms")


def _autograd(names: Names) -> NDArray[np.bool_]:
    return names.matching(lambda name: bool(_AUTOGRAD.match(name)))


def phases_by_time(ops: OpTable) -> Small:
    """The phase of each row: backward below autograd nodes and on autograd threads, optimizer below its step, else what
    an annotation around it says.

    What is left is forward until the step's last backward op has started, and other after that.
    """
    if not len(ops):
        return np.zeros(0, np.int8)
    node = _autograd(ops.names)[ops.name]
    optimizer = ops.names.matching(lambda name: name.startswith("Optimizer."))[ops.name]
    step = ops.names.matching(lambda name: name.startswith("ProfilerStep#"))[ops.name]
    backward = below(node, ops.parent) | np.isin(ops.thread, _autograd_threads(ops, node))
    borders = np.sort(np.concatenate([ops.start[step], ops.end[optimizer]]))
    window = np.searchsorted(borders, ops.start, side="right")
    last_backward = np.full(len(borders) + 1, -np.inf)
    np.maximum.at(last_backward, window[backward], ops.start[backward])
    last_backward[np.isneginf(last_backward)] = np.inf
    phase = np.where(ops.start < last_backward[window], FORWARD, OTHER)
    for named, pattern in _NAMED_PHASES:
        says = ops.names.matching(lambda name, says=pattern: bool(says.search(name)))  # type: ignore[misc]
        # Profilers before PyTorch 1.11 file annotations as calls.
        if (marks := says[ops.name] & ~node).any():
            phase[below(marks, ops.parent)] = named
    phase[backward] = BACKWARD
    phase[below(optimizer, ops.parent)] = OPTIMIZER
    return phase.astype(np.int8)


def _autograd_threads(ops: OpTable, node: NDArray[np.bool_]) -> list[int]:
    """Threads on which most outermost rows are autograd nodes."""
    outermost = ops.parent < 0
    return [
        code
        for code in distinct(ops.thread[node & outermost]).tolist()
        if node[outermost & (ops.thread == code)].mean() > 0.5
    ]


def phases_by_scope(names: Names, name: Ints, backward: NDArray[np.bool_], parent: Ints) -> Small:
    """The phase of each row without times: backward below autograd nodes and ``backward`` rows, else forward.

    >>> names, none = Names(["Optimizer.step#SGD.step", "aten::add_"]), np.zeros(2, bool)
    >>> [PHASES[p] for p in phases_by_scope(names, np.array([0, 1]), none, np.array([-1, 0]))]
    ['optimizer', 'optimizer']
    """
    own = np.full(len(name), -1, np.int8)
    own[_autograd(names)[name] | backward] = BACKWARD
    own[names.matching(lambda n: n.startswith("Optimizer.step#"))[name]] = OPTIMIZER
    phase, above = own.copy(), parent.copy()
    pending = np.flatnonzero((own < 0) & (above >= 0))
    while len(pending):
        phase[pending] = own[above[pending]]
        above[pending] = parent[above[pending]]
        pending = pending[(phase[pending] < 0) & (above[pending] >= 0)]
    phase[phase < 0] = FORWARD
    return phase


def activities(ops: OpTable, functions: ActivityTable) -> ActivityTable:
    """The annotations among some ops, but for marks of steps and collectives, and Python functions, by their start."""
    names = functions.names
    marks = ops.names.matching(lambda name: name.startswith(("ProfilerStep#", "nccl:", "gloo:")))
    noted = np.flatnonzero((ops.kind == ANNOTATION) & ~marks[ops.name]) if len(ops) else np.zeros(0, np.intp)
    noted = noted[np.isfinite(ops.start[noted])]
    code = np.array([names.code(ops.names[name]) for name in ops.name[noted].tolist()], np.int64)
    start = np.concatenate([functions.start, ops.start[noted]])
    end = np.concatenate([functions.end, ops.end[noted]])
    order = call_order(start, end)
    return ActivityTable(
        name=np.concatenate([functions.name, code])[order].astype(np.int32), start=start[order], end=end[order],
        thread=np.concatenate([functions.thread, ops.thread[noted]])[order].astype(np.int32),
        kind=np.repeat([FUNCTION, ANNOTATION], [len(functions), len(noted)])[order].astype(np.int8), names=names,
    )  # fmt: skip


def steps_by_row(ops: OpTable) -> list[Span]:
    """The profiler's step marks without times, as rows: each up to what its thread does next outside of it.

    >>> from foretrace.graph import Op
    >>> rows = [("ProfilerStep#1", -1), ("aten::mm", 0), ("ProfilerStep#2", -1), ("aten::mm", 2), ("aten::add", 2)]
    >>> [tuple(step) for step in steps_by_row(OpTable.of([Op(name, parent=parent) for name, parent in rows]))]
    [('ProfilerStep#1', 0, 2), ('ProfilerStep#2', 2, 5)]
    """
    marks = ops.names.matching(lambda name: bool(STEP_MARK.match(name)))[ops.name] if len(ops) else np.zeros(0, bool)
    if not marks.any():
        return []
    mark_of: list[int] = []
    for row, (marked, parent) in enumerate(zip(marks.tolist(), ops.parent.tolist())):
        mark_of.append(row if marked else mark_of[parent] if parent >= 0 else -1)
    around, found = np.array(mark_of, np.int64), []
    for thread in distinct(ops.thread[marks]):
        rows = np.flatnonzero(ops.thread == thread)
        changes = np.append(rows[1:][np.diff(around[rows]) != 0], len(ops))
        starts = rows[marks[rows]]
        ends = changes[np.searchsorted(changes, starts, side="right")]
        found += [(start, end) for start, end in zip(starts.tolist(), ends.tolist()) if end > start + 1]
    return [Span(ops.names[ops.name[start]], start, end) for start, end in sorted(found)]
