"""Stragglers: ranks that hold the others back, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foretrace.analysis.activities import ALLOCATION, MEANINGS
from foretrace.analysis.collectives import CollectiveTimes
from foretrace.analysis.host_time import Segments
from foretrace.analysis.report import Straggler
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE, Floats, Longs, median
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import TRANSFER, TaskGraph, Timeline, total

TIMES_THE_OTHERS = 2.0
"""A straggler causes this many times the waiting that the average of the other ranks does."""
SHARE_OF_STEP = 0.02
"""A straggler holds the others for at least this part of the step."""
SAME_WORK = 1.02
"""Up to this many times the kernels of the others is the same work."""
EXPLAINS = 0.5
"""Share of the time that a straggler holds others from which on what its host does longer than theirs is the reason."""

LATE_START = "its step begins late"
STAYS_BEHIND = "its step begins late, and its launches stay behind"
LATE_LAUNCHES = "slow host: its launches come late"
LATE_CALLS = "slow host: its calls take longer"
STALLED = "its device idles although work is queued"
MORE_WORK = "more work: it runs more kernels"
SLOWER_KERNELS = "slower kernels"
UNKNOWN = "later for no reason that the trace shows"
OF_THE_HOST = (STAYS_BEHIND, LATE_LAUNCHES, LATE_CALLS, UNKNOWN)
"""Reasons that name nothing that the host does."""


def stragglers(
    graphs: list[Graph], collectives: list[CollectiveTimes], step_ms: float, segments: Sequence[Segments] = ()
) -> list[Straggler]:
    """Ranks that arrive last so often and so late that it matters; the one that holds the others longest comes first.

    ``held_ms`` is how long each rank that meets it waited for it, on average; in several collectives at a time, a rank
    waits once. The ranks' host time, where it is given, tells what the host of a late one does for longer.
    """
    caused = np.array([_held_up(position, collectives) for position in range(len(graphs))])
    partners = [{position} for position in range(len(graphs))]
    for group in collectives:
        for member in group.members:
            partners[member].update(group.members)
    held_ms = caused / np.array([max(len(p) - 1, 1) for p in partners]) / 1e3
    others = (caused.sum() - caused) / max(len(graphs) - 1, 1)
    late = np.flatnonzero((caused > TIMES_THE_OTHERS * others) & (held_ms > SHARE_OF_STEP * step_ms))
    rows = []
    for position in late[np.argsort(-held_ms[late])].tolist():
        held, why = float(held_ms[position]), _why(position, graphs, collectives)
        if why in OF_THE_HOST and len(segments) > 1:
            why = _what_its_host_does(position, segments, held) or why
        rows.append(Straggler(graphs[position].rank, held, why))
    return rows


def _what_its_host_does(late: int, segments: Sequence[Segments], held_ms: float) -> str:
    """What the host of a late rank does for so much longer than those of the others that these wait for it."""
    spent = [_by_cause(cut) for cut in segments]
    longer = {
        cause: ms - float(median(np.array([has.get(cause, 0.0) for has in spent[:late] + spent[late + 1 :]])))
        for cause, ms in spent[late].items()
    }
    cause = max(longer, key=lambda one: longer[one], default="")
    return f"{cause}: {longer[cause]:.1f} ms more" if cause and longer[cause] > EXPLAINS * held_ms else ""


def _by_cause(cut: Segments) -> dict[str, float]:
    """Milliseconds of host time that are for something that has a name of its own, on any thread."""
    found = {}
    for meant in (*MEANINGS, ALLOCATION):
        codes = [code for code, (cause, _) in enumerate(cut.causes.items) if cause == meant]
        if codes:
            rows = np.isin(cut.cause, codes)
            found[meant] = total(cut.start[rows], cut.end[rows]) / 1e3
    return found


def gain_without(late: list[int], tasks: TaskGraph, timeline: Timeline) -> float | None:
    """Milliseconds by which the other ranks would be done sooner if no collective waited for the late ones.

    Waiting is not lost time: a rank whose host is slow itself spends it on launches, and its step takes no longer. So
    the step is simulated again without these waits, with all else as it was. None where no collective is a task.

    >>> # Two ranks that work, arrive, and go on after the transfer between them.
    >>> edges = [(0, 2), (1, 3), (2, 4), (3, 4), (4, 5), (4, 6)]
    >>> kind, rank = np.array([0, 0, 6, 6, 7, 0, 0], np.int8), np.array([0, 1, 0, 1, 1, 0, 1], np.int32)
    >>> tasks = TaskGraph.of([1e3, 3e3, 0, 0, 500, 1e3, 1e3], [0, 1, 2, 3, 3, 0, 1], edges, kind=kind, rank=rank)
    >>> gain_without([1], tasks, simulate(tasks))
    2.0
    """
    after = tasks.after
    theirs = np.isin(tasks.rank[tasks.before], late) & (tasks.kind[after] == TRANSFER)
    edges = np.bincount(after[~theirs], minlength=len(tasks))
    # Of the others: their own tasks, and the transfers that one of them takes part in.
    stays = np.where(tasks.kind == TRANSFER, edges > 0, np.isin(tasks.rank, late, invert=True))
    if not theirs.any() or not stays.any():
        return None
    without = replace(
        tasks,
        first=np.concatenate([[0], np.cumsum(edges)]),
        before=tasks.before[~theirs],
        lag=tasks.lag[~theirs],
        release=np.where((edges == 0) & (tasks.kind == TRANSFER), timeline.start, _releases(tasks)),
    )
    return float(timeline.end[stays].max() - simulate(without).end[stays].max()) / 1e3


def _releases(tasks: TaskGraph) -> Floats:
    return tasks.release if len(tasks.release) else np.zeros(len(tasks))


def as_measured(tasks: TaskGraph, timeline: Timeline) -> TaskGraph:
    """Measured tasks with what no edge explains as lags: simulated, they begin and end when they did."""
    after = tasks.after
    ready = np.full(len(tasks), -np.inf)
    np.maximum.at(ready, after, timeline.end[tasks.before])
    lag = timeline.start - np.where(np.isfinite(ready), ready, timeline.start)
    earliest = timeline.start.min(initial=0.0)
    return replace(tasks, lag=lag[after], release=np.where(np.isfinite(ready), earliest, timeline.start))


def _held_up(late: int, collectives: list[CollectiveTimes]) -> float:
    """How long others waited for a rank, added up over them."""
    waiter, start, end = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
    for group in collectives:
        if late not in group.members:
            continue
        rows = group.last_member == group.members.index(late)
        begins, waits = group.start[rows], group.wait[rows]
        row, column = np.nonzero(waits > 0)
        waiter.append(np.array(group.members, float)[column])
        start.append(begins[row, column])
        end.append((begins + waits)[row, column])
    began, ended = np.concatenate(start), np.concatenate(end)
    # Waits of different ranks are moved apart, so that only those of one rank overlap.
    apart = np.concatenate(waiter) * (ended.max(initial=0.0) - began.min(initial=0.0) + 1.0)
    return total(began + apart, ended + apart)


class _Spent(NamedTuple):
    """Time of a device by state up to the start of each of its kernels, added up from the first one on."""

    awaiting_launch: Floats
    stalled: Floats
    computing: Floats
    kernels: Floats


def _why(late: int, graphs: list[Graph], collectives: list[CollectiveTimes]) -> str:
    """What took the late rank longer than the others, from each collective to the next one it was late for."""
    shared = [group for group in collectives if late in group.members and len(group.members) > 1]
    if _began_late(late, graphs, shared):
        return LATE_START
    if not len(graphs[late].kernels):
        return LATE_CALLS  # its host does the work itself
    spent = [np.stack(_spent(graph)) for graph in graphs]
    own, others, behind, late_for = np.zeros(4), np.zeros(4), 0.0, 0
    for group in shared:
        column = group.members.index(late)
        rows = np.flatnonzero((group.last_member == column) & (group.kernel >= 0).all(axis=1))
        each = np.stack([_since_last(spent[m], group.kernel[:, i], rows) for i, m in enumerate(group.members)])
        own += each[column].sum(axis=1)
        others += median(np.delete(each, column, axis=0)).sum(axis=1)
        launched = np.stack([_launched(graphs[m], group.kernel[rows, i]) for i, m in enumerate(group.members)])
        behind += float(np.nansum(launched[column] - median(np.delete(launched, column, axis=0))))
        late_for += len(rows)
    longer = _Spent(*(own - others))
    # A rank whose launches are as far behind as its step began is not slower than the others from there on.
    late_launches = STAYS_BEHIND if 2 * late_for * _start_behind(late, graphs) > behind > 0 else LATE_LAUNCHES
    if max(longer[:3]) <= 0:  # it was late at its first kernel already
        return late_launches if behind > 0 else UNKNOWN
    if longer.computing > max(longer.awaiting_launch, longer.stalled):
        waited = sum(float(group.wait[group.last_member == group.members.index(late)].sum()) for group in shared)
        comes_late = behind > waited / max(len(graphs) - 1, 1) / 2
        same, longer_for_it = own[3] <= SAME_WORK * others[3], own[2] > SAME_WORK * others[2]
        return (
            _why_busier(late, graphs)
            or (SLOWER_KERNELS if same and longer_for_it else "")
            or (late_launches if comes_late else UNKNOWN)
        )
    return STALLED if longer.stalled > longer.awaiting_launch else late_launches


def _launched(graph: Graph, kernel: Longs) -> Floats:
    """When the call returned that launched each kernel; NaN where it is not in the trace."""
    return np.asarray(np.append(graph.calls.end, np.nan)[graph.kernels.call[kernel]])


def _why_busier(late: int, graphs: list[Graph]) -> str:
    """Whether a rank has more kernels in its step than the others, or kernels that take longer; empty for neither."""
    computes = [graph.kernels.rows(graph.kernels.kind != COLLECTIVE) for graph in graphs]
    count = np.array([len(kernels) for kernels in computes], np.float64)
    us = np.array([float((kernels.end - kernels.start).sum()) for kernels in computes])
    if count[late] > SAME_WORK * median(np.delete(count, late)):
        return MORE_WORK
    return SLOWER_KERNELS if us[late] > SAME_WORK * median(np.delete(us, late)) else ""


def _since_last(spent: Floats, kernel: Longs, rows: Longs) -> Floats:
    """What a device did from one collective of a group to the next, or from its first kernel to the first one."""
    before = np.where(rows > 0, spent[:, kernel[rows - 1]], 0.0)
    return np.asarray(spent[:, kernel[rows]] - before)


def _began_late(late: int, graphs: list[Graph], collectives: list[CollectiveTimes]) -> bool:
    """Whether most of the waiting was at the first collective of a group, and most of that for a late start."""
    first = anywhere = 0.0
    for group in collectives:
        waited = np.where(group.last_member == group.members.index(late), group.wait.sum(axis=1), 0.0)
        first, anywhere = max(first, float(waited[0])), anywhere + float(waited.sum())
    return first > anywhere / 2 and _start_behind(late, graphs) > first / (len(graphs) - 1) / 2


def _start_behind(late: int, graphs: list[Graph]) -> float:
    """Microseconds by which a rank's step began after those of the others."""
    began = np.array([np.nanmin(np.concatenate([g.ops.start, g.calls.start, g.kernels.start])) for g in graphs])
    return float(began[late] - median(np.delete(began, late)))


def _spent(graph: Graph) -> _Spent:
    kernels = graph.kernels
    order = np.argsort(kernels.start, kind="stable")
    start, end, place = kernels.start[order], kernels.end[order], np.argsort(order)
    free_since = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    launched = np.append(graph.calls.end, -np.inf)[kernels.call[order]]
    idle = np.maximum(start - free_since, 0.0)
    awaiting_launch = np.clip(launched - free_since, 0.0, idle)
    computes = kernels.kind[order] != COLLECTIVE
    work = np.where(computes, end - start, 0.0)
    return _Spent(
        awaiting_launch=np.cumsum(awaiting_launch)[place],
        stalled=np.cumsum(idle - awaiting_launch)[place],
        computing=(np.cumsum(work) - work)[place],
        kernels=(np.cumsum(computes) - computes).astype(np.float64)[place],
    )
