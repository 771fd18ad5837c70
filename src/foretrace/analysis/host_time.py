"""Host time cut into the five overheads T1 to T5 and syncs.

| kind | host time |
| --- | --- |
| T1 | between outermost calls |
| T2 | from the start of a call to its first launch; all of a call that launches nothing |
| T3 | from the last launch of a call to its end |
| T4 | inside a launch |
| T5 | between the launches of a call |
| SYNC | inside a sync, or inside a copy that returns only when it is done |

A thread that waits for another one (the main thread while autograd runs the backward) does nothing: that time is no
segment, and the first segment after it knows the thread that ended the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.report import HostOverhead
from foretrace.graph import Graph
from foretrace.graph.tables import CALL, COPY, LAUNCH, CallTable, Floats, Ints, Longs, OpTable, Small
from foretrace.graph.tables import SYNC as SYNC_CALL
from foretrace.simulation.task_graph import SYNC, T1, T2, T3, T4, T5, merged, outermost, previous_on_lane

OVERHEADS = ("T1", "T2", "T3", "T4", "T5")
KINDS = (*OVERHEADS, "sync")
"""Names of the kinds of host time, in the order of `TaskKind`."""


@dataclass
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

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> Floats:
        """In microseconds."""
        return self.end - self.start

    def rows(self, keep: NDArray[Any]) -> Segments:
        """Those that a mask or an index array picks."""
        return Segments(*(getattr(self, f.name)[keep] for f in fields(self)))

    @classmethod
    def concat(cls, pieces: Sequence[Segments]) -> Segments:
        """All segments of several, sorted by thread and time."""
        columns = (np.concatenate([getattr(piece, f.name) for piece in pieces]) for f in fields(cls))
        every = cls(*columns)
        return every.rows(np.lexsort((every.end, every.start, every.thread)))


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
    return Segments.concat(pieces)


def host_overheads(segments: Sequence[Segments]) -> dict[str, HostOverhead]:
    """T1 to T5 of several ranks' host time, the mean over them.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0)])
    >>> host_overheads([host_segments(Graph(ops))])["T2"].ms
    0.8
    """
    kinds = len(OVERHEADS)
    us = np.mean([np.bincount(cut.kind, cut.duration, kinds + 1)[:kinds] for cut in segments], axis=0)
    count = np.mean([np.bincount(cut.kind, minlength=kinds + 1)[:kinds] for cut in segments], axis=0)
    host = float(us.sum())
    return {
        name: HostOverhead(
            ms=float(time) / 1e3,
            count=float(n),
            mean_us=float(time / n) if n else 0.0,
            share=float(time) / host if host else 0.0,
        )
        for name, time, n in zip(OVERHEADS, us, count)
    }


class _Busy(NamedTuple):
    """Times at which a thread was inside a call, a launch or a sync."""

    start: Floats
    end: Floats
    op: Longs


@dataclass
class _Thread:
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
    columns = [np.broadcast_to(np.asarray(value, np.int32), start.shape) for value in (thread, op, call, after_thread)]
    return Segments(start, end, np.broadcast_to(np.asarray(kind, np.int8), start.shape), *columns)


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
    """When the other thread stopped before each of ours began, if it worked while we did not and then the reverse.

    Two threads that merely both have pauses do not take turns: the whole of the other's last piece of work must lie in
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
