"""Measured host time that no model covers: data loading, checkpoints, work of the CPU, long pauses. It is carried over
to another machine as it was measured, and can be left out on purpose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.activities import ALLOCATION, MEANINGS
from foretrace.analysis.breakdown import kernels_in
from foretrace.analysis.dispatched import DispatchedCalls, dispatched_calls
from foretrace.analysis.host_time import KINDS, Segments, host_segments
from foretrace.analysis.report import IdleRow
from foretrace.graph import Graph, OpTable
from foretrace.graph.graph import HostGap
from foretrace.graph.tables import Floats, Longs, distinct
from foretrace.simulation.task_graph import SYNC, T1, T4, merged, total

UNEXPLAINED_US, TIMES_THE_MODEL = 1000.0, 20.0
"""A pause or a call whose name does not say what it is for is carried over where it took so much longer, and so many
times as long, as its model says: no profiler slows one call so much."""
STEP_TIMES_THE_MODEL, UNEXPLAINED_SHARE = 10.0, 0.25
"""What shorter pauses and calls take together goes unexplained where it exceeds the model this many times over, or each
of them `TIMES_THE_MODEL`, by more than this share of the step: profiling was seen to slow whole steps up to 7 times."""
CARRIED_KINDS = MEANINGS | {ALLOCATION}
"""Causes that say what host time is for: no model has it."""
PAUSE, CPU_WORK, LAUNCH_CALL = "pause", "cpu work", "launch call"
"""Causes of gaps that have no other name: between ops, inside one, and in a launch while the device idles (a driver
that loads the kernel)."""


@dataclass(eq=False)
class Gaps:
    """Host time of a step that its model does not have, in microseconds."""

    before: Floats
    """Before each dispatcher call, or inside it."""
    cause: Longs
    """For each call the code in `causes` of what its gap is; -1 for none."""
    causes: list[tuple[str, str]] = field(default_factory=list)
    after: float = 0.0
    """After the last call."""

    @classmethod
    def none(cls, calls: int) -> Gaps:
        """No gap in so many calls."""
        return cls(np.zeros(calls), np.full(calls, -1, np.int64))

    def add(self, call: int, kind: str, name: str, us: float) -> None:
        """Add a gap before a call; after the last one for a call that there is not. The longest names them all."""
        if us <= 0:
            return
        if call >= len(self.before):
            self.after += us
            return
        if us > self.before[call] / 2:
            if (kind, name) not in self.causes:
                self.causes.append((kind, name))
            self.cause[call] = self.causes.index((kind, name))
        self.before[call] += us

    def outside(self, captured: NDArray[np.bool_]) -> Gaps:
        """The same with those inside a CUDA graph, which is launched at once, before it."""
        if not captured.any():
            return self
        first, before, cause = int(captured.argmax()), np.where(captured, 0.0, self.before), self.cause.copy()
        within = np.where(captured, self.before, 0.0)
        before[first], longest = within.sum(), self.cause[within.argmax()]
        cause[captured] = -1
        cause[first] = longest if within.any() else -1
        return replace(self, before=before, cause=cause)

    def repeated(self, times: int) -> Gaps:
        """Those of so many steps."""
        return replace(self, before=np.tile(self.before, times), cause=np.tile(self.cause, times))

    def scaled(self, factor: float) -> Gaps:
        """Those of a host that takes so many times as long."""
        return replace(self, before=self.before * factor, after=self.after * factor)

    @property
    def total_ms(self) -> float:
        """All of them."""
        return float(self.before.sum() + self.after) / 1e3


def with_host_gaps(graph: Graph) -> Graph:
    """A measured step with the host time that its calls may not have, for transforms to keep."""
    if not len(graph.kernels):
        return graph
    step = dispatched_calls(graph)
    rows = [*step.rows.tolist(), len(graph.ops)]
    found = [gap._replace(first=rows[gap.first], beyond=rows[gap.beyond]) for gap in _host_gaps(graph, step.calls.ops)]
    taken, step_us = _times_of_calls(graph, step)
    spent = {rows[at]: float(taken[at]) for at in np.flatnonzero(taken).tolist()}
    return replace(graph, host_gaps=tuple(found), call_times=spent, measured_us=step_us)


def _host_gaps(graph: Graph, ops: OpTable) -> Iterator[HostGap]:
    """Host time of a measured step that a model of its dispatcher calls may not have, by the rows of these.

    Time whose name does not say what it is for is among it where it is long; and not at all in a recording that timed
    unprofiled steps, since what profiling adds would be among it.
    """
    if not len(ops) or not len(graph.kernels) or not np.isfinite(ops.start).all():
        return
    cut, names = host_segments(graph), graph.ops.names
    for thread in distinct(ops.thread).tolist():
        calls = np.flatnonzero(ops.thread == thread)
        starts, own = ops.start[calls], np.append(calls, len(ops)).tolist()
        on_thread = cut.rows((cut.thread == thread) & (cut.kind != SYNC))
        meant = np.array([kind in CARRIED_KINDS for kind, _ in cut.causes.items] + [False])[on_thread.cause]
        named = on_thread.rows(meant)
        for begin, end in zip(*merged(named.start, named.end)[:2]):
            first, beyond = (own[at] for at in np.searchsorted(starts, [begin, end]))
            us = float(end - begin) / graph.profiling_overhead
            yield HostGap(first, beyond, *_longest(named, begin, end), us, True)
        if graph.unprofiled.synced_ms:
            continue
        rest = on_thread.rows(~meant)
        pauses = rest.rows((rest.kind == T1) & (rest.duration >= UNEXPLAINED_US))
        for row in range(len(pauses.start)):
            call = own[int(np.searchsorted(starts, pauses.end[row]))]
            kind, name = pauses.label(row, names[graph.ops.name[pauses.op[row]]] if pauses.op[row] >= 0 else "")
            if not name.startswith("Optimizer."):
                yield HostGap(call, call, PAUSE if kind in KINDS else kind, name, float(pauses.duration[row]), False)
        stuck = rest.rows((rest.kind == T4) & (rest.duration >= UNEXPLAINED_US))
        for row in range(len(stuck)):
            begin, end = stuck.start[row], stuck.end[row]
            active = kernels_in(graph, begin, end)
            if total(active.start, active.end) < (end - begin) / 2:  # else it may wait for room in the queue
                call = own[max(int(np.searchsorted(starts, begin, "right")) - 1, 0)]
                name = graph.calls.names[graph.calls.name[stuck.call[row]]] if stuck.call[row] >= 0 else ""
                yield HostGap(call, call, LAUNCH_CALL, name, float(end - begin), False)
        spent = rest.rows((rest.kind != T1) & (rest.kind != T4) & (rest.op >= 0))
        inside = np.bincount(spent.op, spent.duration, len(graph.ops))
        for op in np.flatnonzero(inside >= UNEXPLAINED_US).tolist():
            first, beyond = (own[at] for at in np.searchsorted(starts, [graph.ops.start[op], graph.ops.end[op]]))
            yield HostGap(first, beyond, CPU_WORK, names[graph.ops.name[op]], float(inside[op]), False)


def _longest(named: Segments, begin: float, end: float) -> tuple[str, str]:
    """The cause of most of an interval."""
    rows = np.flatnonzero((named.start >= begin) & (named.end <= end))
    us = np.bincount(named.cause[rows], named.duration[rows])
    return named.causes.items[int(us.argmax())]


def measured_gaps(
    graph: Graph, step: DispatchedCalls, before: Floats, inside: Floats, meant_only: bool = False
) -> Gaps:
    """The gaps of a measured step, or of one that was made of it.

    Parameters
    ----------
    graph
        The step as it was measured, or edited.
    step
        Its dispatcher calls.
    before, inside
        What the model of the host has for each of them: T1, and T2 to T5.
    meant_only
        Whether only what has a name that says what it is for is carried over: where the model is of the host that the
        step was measured on, it knows the rest.
    """
    gaps, found = Gaps.none(len(step.rows)), list(graph.host_gaps)
    if found:  # by the rows of the graph
        rows = np.searchsorted(step.rows, [(gap.first, gap.beyond) for gap in found]).tolist()
        found = [gap._replace(first=first, beyond=beyond) for gap, (first, beyond) in zip(found, rows)]
    known, modelled = np.append(before, 0.0), np.append(0.0, np.cumsum(before + inside))
    for gap in found or _host_gaps(graph, step.calls.ops):
        has = float(modelled[gap.beyond] - modelled[gap.first] if gap.beyond > gap.first else 0.0)
        if not gap.meant:
            works = gap.cause == CPU_WORK
            has = has if works else float(known[gap.first])
            if meant_only or gap.us < max(has + UNEXPLAINED_US * works, TIMES_THE_MODEL * has):
                continue
        gaps.add(gap.first, gap.cause, gap.name, gap.us - has)
    return gaps


class Unexplained(NamedTuple):
    """Host time of a measured step in calls and in the pauses between them, in milliseconds."""

    taken: float
    """All of it but launches, waits and what has a name that says what it is for."""
    beyond_model: float
    """What neither a model nor a profiler explains, and is not carried over."""
    here: float
    """How long that would take on the host that is predicted."""


def unexplained_time(
    graph: Graph, step: DispatchedCalls, modelled: Floats, gaps: Gaps, ratio: float = 1.0
) -> Unexplained | None:
    """Measured host time that would be left out unexplained; None where it is little of the step.

    ``modelled`` is what the host's model has for each of the dispatcher calls outside of launches, ``gaps`` what is
    carried over; the host that is predicted takes ``ratio`` times as long.
    """
    taken, step_us = _times_of_calls(graph, step)
    rest = np.maximum(taken - gaps.before, 0.0)
    beyond = max(
        float(np.maximum(rest - TIMES_THE_MODEL * modelled, 0.0).sum()),
        float(rest.sum() - STEP_TIMES_THE_MODEL * modelled.sum()),
    )
    if beyond <= UNEXPLAINED_SHARE * step_us:
        return None
    more_ms = float(np.maximum(rest - modelled, 0.0).sum()) / 1e3
    return Unexplained(float(taken.sum()) / 1e3, more_ms, more_ms * ratio)


def _times_of_calls(graph: Graph, step: DispatchedCalls) -> tuple[Floats, float]:
    """Measured host time of each dispatcher call and the pause before it, but for launches, waits and what has a name
    that says what it is for; and how long the step took. Of an edited step, as `with_host_gaps` had it.
    """
    ops, taken = step.calls.ops, np.zeros(len(step.rows))
    if graph.measured_us:
        rows = np.searchsorted(step.rows, list(graph.call_times))
        np.add.at(taken, np.minimum(rows, len(taken) - 1), list(graph.call_times.values()))
        return taken, graph.measured_us
    if not len(graph.kernels) or not len(ops) or not np.isfinite(ops.start).all():
        return taken, np.inf
    cut = host_segments(graph)
    named = np.array([kind in CARRIED_KINDS for kind, _ in cut.causes.items] + [False])[cut.cause]
    cut = cut.rows(~named & (cut.kind != SYNC) & (cut.kind != T4))
    for thread in distinct(ops.thread).tolist():
        own, calls = cut.rows(cut.thread == thread), np.flatnonzero(ops.thread == thread)
        starts = ops.start[calls]
        at = np.where(own.kind == T1, np.searchsorted(starts, own.end), np.searchsorted(starts, own.start, "right") - 1)
        of_call = (at >= 0) & (at < len(calls))
        taken += np.bincount(calls[at[of_call]], own.duration[of_call], len(ops))
    step_us = float(ops.end.max() - ops.start.min())
    return taken / graph.profiling_overhead, step_us / graph.profiling_overhead


def carried_rows(each: Sequence[Gaps | None]) -> list[IdleRow]:
    """What was carried over, the mean over ranks, the longest first; shares are of all of it."""
    ms: dict[tuple[str, str], float] = defaultdict(float)
    for gaps in filter(None, each):
        for call in np.flatnonzero(gaps.cause >= 0).tolist():
            ms[gaps.causes[gaps.cause[call]]] += float(gaps.before[call]) / 1e3 / len(each)
        if gaps.after:
            ms[PAUSE, "after the last call"] += gaps.after / 1e3 / len(each)
    total = sum(ms.values())
    return sorted((IdleRow(*key, one, one / total) for key, one in ms.items()), key=lambda row: -row.ms)
