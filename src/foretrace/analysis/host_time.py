"""Host time cut into the five overheads T1 to T5 and syncs.

| kind | host time |
| --- | --- |
| T1 | between outermost calls |
| T2 | from the start of a call to its first launch; all of a call that launches nothing |
| T3 | from the last launch of a call to its end |
| T4 | inside a launch: launch overhead |
| T5 | between the launches of a call |
| SYNC | inside a sync, or inside a copy that returns only when it is done |

Time in which a host does something that has a cause of its own (`foretrace.analysis.activities`) is cut out of these:
such segments keep their kind and have a cause. A pause in which the host polls for the device is a SYNC.

A thread that waits for another one (the main thread while autograd runs the backward) does nothing: that time is no
segment, and the first segment after it knows the thread that ended the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.activities import (
    BUSY_WAIT,
    LONG_US,
    Activities,
    Causes,
    host_activities,
    innermost_names,
    polled_kernels,
)
from foretrace.analysis.report import HostOverhead
from foretrace.graph import Graph
from foretrace.graph.tables import (
    CALL,
    COPY,
    LAUNCH,
    ActivityTable,
    CallTable,
    Floats,
    Ints,
    KernelTable,
    Longs,
    OpTable,
    Small,
    distinct,
)
from foretrace.graph.tables import SYNC as SYNC_CALL
from foretrace.simulation.task_graph import SYNC, T1, T2, T3, T4, T5, merged, outermost, previous_on_lane, total

OVERHEADS = ("T1", "T2", "T3", "T4", "T5")
KINDS = (*OVERHEADS, "sync")
"""Names of the kinds of host time, in the order of `TaskKind`."""


@dataclass(eq=False)
class Segments:
    """Segments of host time, thread by thread and in time order within one."""

    start: Floats
    end: Floats
    kind: Small
    thread: Ints
    op: Ints
    """The outermost op around it, for T1 the one that follows; -1 where there is none."""
    call: Ints
    """The runtime call of a T4 or SYNC; -1 elsewhere."""
    after_thread: Ints
    """The thread whose stop this T1 waited for; -1 where it followed its own."""
    cause: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """Code in `causes` of what fills it (garbage collection, a lock, …); -1 for ordinary overhead of its kind."""
    polled: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """The kernel that a SYNC without a call polled for; -1 elsewhere."""
    causes: Causes = field(default_factory=Causes)

    def __post_init__(self) -> None:
        """Without a cause, where none is given."""
        if len(self.cause) != len(self.start):
            self.cause = np.full(len(self.start), -1, np.int32)
        if len(self.polled) != len(self.start):
            self.polled = np.full(len(self.start), -1, np.int32)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Floats:
        """In microseconds."""
        return self.end - self.start

    def rows(self, keep: NDArray[Any]) -> Segments:
        """Those that a mask or an index array picks."""
        return replace(self, **{name: getattr(self, name)[keep] for name in _COLUMNS})

    def label(self, row: int, op: str) -> tuple[str, str]:
        """What a segment is, and its name: its cause, else its kind and that of its op."""
        return self.causes.items[self.cause[row]] if self.cause[row] >= 0 else (KINDS[self.kind[row]], op)

    @classmethod
    def concat(cls, pieces: Sequence[Segments]) -> Segments:
        """All segments of several, sorted by thread and time."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in _COLUMNS
        }
        every = replace(pieces[0], **columns)
        return every.rows(np.lexsort((every.end, every.start, every.thread)))


_COLUMNS = [column.name for column in fields(Segments) if column.name != "causes"]


def host_segments(graph: Graph) -> Segments:
    """Cut a rank's host time at its outermost calls, launches and syncs.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=8.0), Op("aten::relu", start_us=10.0, end_us=15.0)])
    >>> cut = host_segments(Graph(ops))
    >>> [(KINDS[kind], float(length)) for kind, length in zip(cut.kind, cut.duration)]
    [('T2', 8.0), ('T1', 2.0), ('T2', 5.0)]
    """
    ops, calls = _outermost_calls(graph), _outermost_runtime_calls(graph)
    threads = [_Thread.of(graph, thread, ops.get(thread), calls.get(thread)) for thread in sorted({*ops, *calls})]
    blocked = _blocked_since(graph)
    pieces = [_segments(-1, np.zeros(0), np.zeros(0), T1, -1)]
    for thread in threads:
        pieces += [_between_calls(thread, threads), *_inside_calls(graph, thread)]
        pieces += _runtime_calls(graph, thread, blocked)
    pieces += _around_calls(graph, threads)
    cut = _with_causes(graph, Segments.concat(pieces))
    return cut if threads else cut.rows(cut.cause >= 0)  # without calls, only what has a name is known


def _around_calls(graph: Graph, threads: list[_Thread]) -> list[Segments]:
    """T1 on the main thread from the start of the step to its first call, and from its last call to the end.

    The main thread is that of the step's mark, or of the activity that stands for one; without marks, the one whose
    activities take longest. Where no thread calls anything, all of its time in the step is T1.
    """
    ops, names = graph.ops, {span.name for span in graph.steps}
    if len(graph.steps) == 1:
        (span,) = graph.steps
        marks = np.flatnonzero(ops.names.matching(names.__contains__)[ops.name]) if len(ops) else np.zeros(0, np.intp)
        marks = marks[ops.start[marks] == span.start]
        iteration = graph.activities.thread[graph.activities.start == span.start]
        thread = int([*ops.thread[marks], *iteration, -1][0])
        begin, end = span.start, span.end
        if not threads and len(marks):
            return [_segments(thread, np.array([begin]), np.array([end]), T1, -1)]
    elif not threads and len(graph.activities):
        does = graph.activities
        mine = does.thread == (thread := _busiest(does))
        return [_segments(thread, does.start[mine].min(keepdims=True), does.end[mine].max(keepdims=True), T1, -1)]
    else:
        known = graph.activities.rows(np.isin(graph.activities.thread, [one.id for one in threads]))
        if names or not len(known):
            return []
        thread = _busiest(known)
        begin, end = float(known.start[known.thread == thread].min()), float(known.end[known.thread == thread].max())
    main = next((one for one in threads if one.id == thread), None)
    if main is None or not len(main.busy.start):
        return []
    head = _segments(thread, np.array([begin]), main.busy.start[:1], T1, main.busy.op[:1])
    last = main.busy.end.max()
    tail = _segments(thread, np.array([last]), np.array([end]), T1, -1)
    return [piece.rows(piece.end > piece.start) for piece in (head, tail)]


def _busiest(activities: ActivityTable) -> int:
    """The thread whose activities take longest."""
    threads = distinct(activities.thread)
    return int(threads[np.bincount(activities.thread, activities.end - activities.start)[threads].argmax()])


def _with_causes(graph: Graph, segments: Segments) -> Segments:
    """The segments cut at what has a cause of its own; pauses in which the host polls for the device are syncs."""
    kernel = polled_kernels(
        graph, segments.thread, segments.start, np.where(segments.kind == T1, segments.end, -np.inf)
    )
    waits, names = np.flatnonzero(kernel >= 0), graph.kernels.names
    segments.kind, segments.polled = segments.kind.copy(), kernel.astype(np.int32)
    segments.kind[waits] = SYNC
    segments.cause[waits] = [segments.causes.code(BUSY_WAIT, names[graph.kernels.name[row]]) for row in kernel[waits]]
    if not len(graph.activities) and not len(graph.calls):
        return segments
    cut = cut_at(segments, host_activities(graph, segments.causes))
    pauses = np.flatnonzero((cut.kind == T1) & (cut.cause < 0) & (cut.duration >= LONG_US))
    if not len(pauses) or not len(graph.activities):
        return cut
    return cut_at(cut, innermost_names(graph, cut.causes, cut.thread[pauses], cut.start[pauses], cut.end[pauses]))


def cut_at(segments: Segments, activities: Activities) -> Segments:
    """The segments cut at the borders of activities; the parts inside these get their causes, but for syncs."""
    if not len(activities.start):
        return segments
    pieces = [segments.rows(~np.isin(segments.thread, activities.thread))]
    for thread in distinct(activities.thread):
        ours = segments.rows(segments.thread == thread)
        start, end, _, cause = (column[activities.thread == thread] for column in activities)
        borders = distinct(np.concatenate([start, end]))
        first = np.searchsorted(borders, ours.start, "right")
        inside = np.maximum(np.searchsorted(borders, ours.end, "left") - first, 0)
        row = np.repeat(np.arange(len(ours)), inside + 1)
        place = np.arange(len(row)) - np.repeat(np.cumsum(inside + 1) - inside - 1, inside + 1)
        cut = ours.rows(row)
        cut.start = np.where(place > 0, np.append(borders, np.nan)[first[row] + place - 1], cut.start)
        cut.end = np.where(place < inside[row], np.append(borders, np.nan)[first[row] + place], cut.end)
        cut.after_thread = np.where(place > 0, -1, cut.after_thread).astype(np.int32)
        middle = (cut.start + cut.end) / 2
        at = np.searchsorted(start, middle, "right") - 1
        within = (at >= 0) & (middle < end[at]) & (cut.kind != SYNC) & (cut.cause < 0)
        cut.cause = np.where(within, cause[at], cut.cause).astype(np.int32)
        cut.op = np.where(within & (cut.kind == T1), -1, cut.op).astype(np.int32)  # the next op is not to blame
        pieces.append(cut)
    return Segments.concat(pieces)


def host_overheads(segments: Sequence[Segments]) -> dict[str, HostOverhead]:
    """T1 to T5 of several ranks' host time, and what else fills it, the mean over them.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0)])
    >>> host_overheads([host_segments(Graph(ops))])["T2"].ms
    0.8
    """
    sums: dict[str, NDArray[np.float64]] = {name: np.zeros(2) for name in OVERHEADS}
    for cut in segments:
        kinds = [*KINDS, *(kind for kind, _ in cut.causes.items)]
        code = np.where(cut.cause >= 0, cut.cause + len(KINDS), cut.kind)[cut.kind != SYNC]
        us = np.bincount(code, cut.duration[cut.kind != SYNC], len(kinds))
        count = np.bincount(code, minlength=len(kinds))
        for at in np.flatnonzero(count).tolist():
            sums.setdefault(kinds[at], np.zeros(2))[:] += us[at] / len(segments), count[at] / len(segments)
    host = float(sum(us for us, _ in sums.values()))
    return {
        name: HostOverhead(
            ms=float(time) / 1e3,
            count=float(n),
            mean_us=float(time / n) if n else 0.0,
            share=float(time) / host if host else 0.0,
        )
        for name, (time, n) in sums.items()
    }


def busy_ms(segments: Segments, kernels: KernelTable) -> float:
    """Milliseconds in which any thread of a rank works, and does not wait for the device.

    After the last call of a thread nothing is recorded of what it does: it may wait. Where no kernel names its launch,
    it is unknown when the host waits and when it works: then none of its time counts.
    """
    if len(kernels) and not (kernels.call >= 0).any():
        return 0.0
    unknown = (segments.kind == T1) & (segments.op < 0) & (segments.cause < 0)
    works = (segments.kind != SYNC) & ~unknown
    return total(segments.start[works], segments.end[works]) / 1e3


class _Busy(NamedTuple):
    """Times at which a thread was inside a call, a launch or a sync."""

    start: Floats
    end: Floats
    op: Longs


class _Thread(NamedTuple):
    id: int
    ops: Longs
    """Rows of the outermost calls into the dispatcher."""
    calls: Longs
    """Rows of the launches and syncs, none inside another."""
    around: Longs
    """For each of those, the position in `ops` of the op around it; -1 for none."""
    owner: Longs
    """For each of those, the outermost op around it, or the annotation or module where no op is."""
    busy: _Busy

    @classmethod
    def of(cls, graph: Graph, thread: int, ops: Longs | None, calls: Longs | None) -> _Thread:
        ops, calls = (np.zeros(0, np.int64) if rows is None else rows for rows in (ops, calls))
        starts, owner = graph.calls.start[calls], graph.calls.op[calls].astype(np.int64)
        around = np.full(len(calls), -1)
        if len(ops):
            around = np.searchsorted(graph.ops.start[ops], starts, "right") - 1
            around = np.where(starts < graph.ops.end[ops][around], around, -1)
            owner = np.where(around >= 0, ops[around], owner)
        start, end, first = merged(
            np.concatenate([graph.ops.start[ops], starts]), np.concatenate([graph.ops.end[ops], graph.calls.end[calls]])
        )
        return cls(thread, ops, calls, around, owner, _Busy(start, end, np.concatenate([ops, owner])[first]))


def _outermost_calls(graph: Graph) -> dict[int, Longs]:
    return _outermost_by_thread(graph.ops, graph.ops.kind == CALL)


def _outermost_runtime_calls(graph: Graph) -> dict[int, Longs]:
    return _outermost_by_thread(graph.calls, (graph.calls.kind == LAUNCH) | (graph.calls.kind == SYNC_CALL))


def _outermost_by_thread(table: OpTable | CallTable, picked: NDArray[np.bool_]) -> dict[int, Longs]:
    """For each thread, the picked rows that lie inside no other picked one; rows without times are left out."""
    rows = np.flatnonzero(picked & np.isfinite(table.start) & np.isfinite(table.end))
    rows = rows[np.lexsort((-table.end[rows], table.start[rows], table.thread[rows]))]
    threads, first = np.unique(table.thread[rows], return_index=True)
    each = np.split(rows, first[1:]) if len(rows) else []
    return {int(thread): rows[outermost(table.start[rows], table.end[rows])] for thread, rows in zip(threads, each)}


def _segments(
    thread: int, start: Floats, end: Floats, kind: Any, op: Any, call: Any = -1, after_thread: Any = -1
) -> Segments:
    """Segments of one thread; what is given once holds for all of them."""
    ids = [np.broadcast_to(np.asarray(value, np.int32), start.shape) for value in (thread, op, call, after_thread)]
    return Segments(start, end, np.broadcast_to(np.asarray(kind, np.int8), start.shape), ids[0], ids[1], ids[2], ids[3])


def _between_calls(thread: _Thread, threads: list[_Thread]) -> Segments:
    """T1: from the end of what was before, or from the moment another thread handed over."""
    busy = thread.busy
    idle_since = np.concatenate([[-np.inf], busy.end[:-1]])
    handed_at, by = np.full(len(busy.start), -np.inf), np.full(len(busy.start), -1)
    for other in threads:
        if other is not thread:
            stopped = _stopped_meanwhile(busy, idle_since, other.busy)
            later = stopped > handed_at
            handed_at[later], by[later] = stopped[later], other.id
    began = np.maximum(idle_since, handed_at)
    keep = np.isfinite(began) & ((began < busy.start) | (by >= 0))
    return _segments(thread.id, began[keep], busy.start[keep], T1, busy.op[keep], after_thread=by[keep])


def _stopped_meanwhile(busy: _Busy, idle_since: Floats, other: _Busy) -> Floats:
    """When another thread handed over to this one: for each busy interval of ours the end of the other's last one
    before it, if the two took turns; else minus infinity.

    Two threads that merely both have pauses do not take turns: the whole of the other's last busy interval must lie in
    our pause, and the whole of our next one in the other's.
    """
    last = np.searchsorted(other.end, busy.start, "right") - 1
    resumed = np.append(other.start, np.inf)[last + 1]
    turns = (last >= 0) & (other.start[last] >= idle_since) & (resumed >= busy.end)
    return np.where(turns, other.end[last], -np.inf)


def _inside_calls(graph: Graph, thread: _Thread) -> list[Segments]:
    """T2, T3 and T5: what a call does around its launches."""
    op_end, call_start = graph.ops.end[thread.ops], graph.calls.start[thread.calls]
    next_start = np.append(call_start, np.inf)

    begin = graph.ops.start[thread.ops]
    end = np.minimum(op_end, next_start[np.searchsorted(call_start, begin, "left")])
    before_launches = _segments(thread.id, begin, end, T2, thread.ops)

    inside = np.flatnonzero(thread.around >= 0)
    owner = thread.around[inside]
    begin, end = graph.calls.end[thread.calls[inside]], np.minimum(op_end[owner], next_start[inside + 1])
    is_last = np.append(thread.around, -1)[inside + 1] != owner
    after_launches = _segments(thread.id, begin, end, np.where(is_last, T3, T5), thread.ops[owner])
    return [cut.rows(cut.end > cut.start) for cut in (before_launches, after_launches)]


def _runtime_calls(graph: Graph, thread: _Thread, blocked_since: Floats) -> list[Segments]:
    """T4 and SYNC: a launch until it waits for its own copy, a sync from its start."""
    start, end = graph.calls.start[thread.calls], graph.calls.end[thread.calls]
    launches = graph.calls.kind[thread.calls] == LAUNCH
    waits = np.where(launches, np.clip(blocked_since[thread.calls], start, end), start)
    launch = _segments(thread.id, start, waits, T4, thread.owner, thread.calls).rows(launches)
    sync = _segments(thread.id, waits, end, SYNC, thread.owner, thread.calls).rows(~launches | (waits < end))
    return [launch, sync]


def _blocked_since(graph: Graph) -> Floats:
    """For each runtime call, when it began to wait for a copy it started itself; infinity for those that do not.

    A copy that is over before its call returns was waited for: from its own start where its stream was free, else from
    the start of the call, which waited for the stream too.
    """
    since = np.full(len(graph.calls), np.inf)
    kernels = graph.kernels
    copies = np.flatnonzero((kernels.kind == COPY) & (kernels.call >= 0))
    copies = copies[kernels.end[copies] <= graph.calls.end[kernels.call[copies]]]
    called, previous = kernels.call[copies], previous_on_lane(kernels.stream, kernels.start)[copies]
    free = (previous < 0) | (kernels.end[previous] <= graph.calls.start[called])
    since[called] = np.where(free, kernels.start[copies], graph.calls.start[called])
    return since
