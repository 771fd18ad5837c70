"""Why a device idles during a step: what the thread does that launches next, and launched work that does not start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from foretrace.analysis.activities import LONG_US, Activities
from foretrace.analysis.critical_path import LATENCY_US
from foretrace.analysis.host_time import KINDS, Segments, cut_at
from foretrace.analysis.report import LATENCY, NO_EVENT, QUEUED, UNRECORDED, IdleRow, bound_by, idle_by_cause
from foretrace.graph import Graph, OpTable
from foretrace.graph.tables import (
    SEVERAL,
    Floats,
    Ints,
    KernelTable,
    distinct,
    launched_before,
    launches_without_kernels,
)
from foretrace.simulation.task_graph import SYNC, T1, T4, merged


def idle_rows(
    graph: Graph, kernels: KernelTable, segments: Segments, start: float, end: float, ops: OpTable
) -> list[IdleRow]:
    """What the device idles for in a time window, the longest first.

    Parameters
    ----------
    graph
        Whose runtime calls the kernels are launched by.
    kernels
        The device work of the window.
    segments
        Its host time.
    start, end
        The window.
    ops
        Those that the host time is of.
    """
    if not len(graph.kernels):
        return []
    after = graph.kernels.rows(graph.kernels.start >= end)
    following = int(after.call[np.argmin(after.start)]) if len(after) else -1  # launched in the window, maybe
    busy_start, busy_end, first = merged(kernels.start, kernels.end)
    begins, ends = np.append(start, busy_end), np.append(busy_start, end)
    call = np.append(kernels.call[first], following)
    main = _launching(segments)
    waits_for_host = np.append(~launched_before(graph.kernels, kernels.rows(first)), True)
    launched = np.append(graph.calls.end, end)[call]
    launched = np.clip(np.where(waits_for_host, launched, begins), begins, np.maximum(ends, begins))
    thread = np.append(graph.calls.thread, main[0] if main else -1)[call]
    found: dict[tuple[str, str], float] = defaultdict(float)
    late = ends - launched
    found[LATENCY, ""] = float(late[(late > 0) & (late <= LATENCY_US)].sum())
    unrecorded = ends <= graph.kernels.start.min()
    found[QUEUED, UNRECORDED] = float(late[(late > LATENCY_US) & unrecorded].sum())
    found[QUEUED, ""] = float(late[(late > LATENCY_US) & ~unrecorded].sum())
    unseen = _add_host(ops, segments, begins, launched, thread.astype(np.int32), main, found)
    for name, us in _open_meanwhile(graph, unseen).items():
        found[NO_EVENT, name] += us
    total = sum(found.values())
    rows = [IdleRow(*key, us / 1e3, us / total) for key, us in found.items() if us > 0]
    return sorted(rows, key=lambda row: -row.ms)


def mean_idle(each: Sequence[list[IdleRow]]) -> list[IdleRow]:
    """What devices idle for, the mean over ranks.

    >>> mean_idle([[IdleRow("T1", "aten::mm", 3.0, 1.0)], [IdleRow("sync", "", 1.0, 1.0)]])[0]
    IdleRow(cause='T1', name='aten::mm', ms=1.5, share=0.75)
    """
    ms: dict[tuple[str, str], float] = defaultdict(float)
    for row in (row for rows in each for row in rows):
        ms[row.cause, row.name] += row.ms / len(each)
    idle = sum(ms.values())
    return sorted((IdleRow(*key, mean, mean / idle) for key, mean in ms.items()), key=lambda row: -row.ms)


def lost_ms(graph: Graph) -> float:
    """How long those of a step's kernels take that are not recorded, if like the others; 0 where few are missing."""
    lost, launches = launches_without_kernels(graph.calls, graph.kernels)
    if lost <= SEVERAL * launches or not len(graph.kernels):
        return 0.0
    return lost * float((graph.kernels.end - graph.kernels.start).mean()) / 1e3


def host_limits(step_ms: float, idle_ms: float, idle: list[IdleRow], host_ms: float, missing_ms: float) -> bool:
    """Whether the host limits a step even if kernels that are missing, which take so long, ran while the device seems
    idle.

    A host that waits for an idle device waits for something that is not recorded.

    >>> [host_limits(10.0, 6.0, [IdleRow("T1", "", 6.0, 1.0)], 5.0, missing) for missing in (0.0, 1.0, 5.5)]
    [True, True, False]
    >>> host_limits(10.0, 6.0, [IdleRow("sync", "", 6.0, 1.0)], 4.0, 1.0)
    False
    """
    causes = idle_by_cause(idle)
    waited_ms = causes.get(KINDS[SYNC], 0.0) if missing_ms else 0.0
    left_ms = idle_ms - min(max(missing_ms, waited_ms), idle_ms)
    return bound_by(step_ms, left_ms, causes, host_ms) == "host"


def _launching(segments: Segments) -> list[int]:
    """The threads of a rank, those that launch most first."""
    counts = np.bincount(segments.thread + 1)  # -1 is no thread
    launches = np.bincount(segments.thread[segments.kind == T4] + 1, minlength=len(counts))
    order = np.lexsort((-counts, -launches))
    return (order[counts[order] > 0] - 1).tolist()  # type: ignore[no-any-return]


def _add_host(
    ops: OpTable,
    segments: Segments,
    start: Floats,
    end: Floats,
    thread: Ints,
    threads: list[int],
    found: dict[tuple[str, str], float],
) -> Segments:
    """Add what the host does in gaps of the device: the thread that launches next, else another that does anything.

    Gives the parts of the gaps in which none does.
    """
    kind, none = np.full(len(start), T1, np.int8), np.full(len(start), -1, np.int32)
    gaps = Segments(start, end, kind, thread, none, none, none)
    gaps = gaps.rows(end > start)
    work = Activities(segments.start, segments.end, segments.thread, np.arange(len(segments), dtype=np.int32))
    names = np.append(ops.name, -1).astype(np.int64)
    for other in [None, *threads]:
        if other is not None:
            gaps.thread = np.full(len(gaps), other, np.int32)
        pieces = cut_at(gaps, work)
        known = pieces.cause >= 0
        us = np.bincount(pieces.cause[known], pieces.duration[known], len(segments))
        rows = distinct(pieces.cause[known])
        # One number for the segments of each label: their cause, else their kind and the name of their op.
        cause, named = segments.cause[rows], segments.kind[rows] + len(KINDS) * (names[segments.op[rows]] + 1)
        _, first, which = np.unique(np.where(cause >= 0, -1 - cause, named), return_index=True, return_inverse=True)
        of_label = np.bincount(which, us[rows], len(first))
        for at in np.argsort(first).tolist():
            row = int(rows[first[at]])
            op = int(segments.op[row])
            found[segments.label(row, ops.names[ops.name[op]] if op >= 0 else "")] += float(of_label[at])
        gaps = pieces.rows(~known)
        if not len(gaps):
            break
    return gaps


def _open_meanwhile(graph: Graph, gaps: Segments) -> dict[str, float]:
    """Microseconds of gaps by the annotation or runtime call, begun last, that is open meanwhile on any thread; by ""
    for short ones and those without any.
    """
    us = {"": 0.0}
    for start, end in zip(gaps.start.tolist(), gaps.end.tolist()):
        around = []
        for table in (graph.activities, graph.calls) if end - start >= LONG_US else ():
            rows = np.flatnonzero((table.start < end) & (table.end > start))
            around += [(float(table.start[row]), float(table.end[row]), table.names[table.name[row]]) for row in rows]
        borders = sorted({start, end, *(time for one in around for time in one[:2] if start < time < end)})
        for begin, until in pairwise(borders):
            inside = [(since, name) for since, over, name in around if since <= begin and over >= until]
            name = f"inside {max(inside)[1]}" if inside else ""
            us[name] = us.get(name, 0.0) + until - begin
    return us
