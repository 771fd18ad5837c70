"""How long a step of a loop takes: as long as its mark on the host, or from device end to device end where the host
runs ahead.

A host that runs ahead is through with a step before its device is, until a queue is full or something waits: the marks
of the first steps are too short then, and that of the step which waits is too long.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Graph, Span
from foretrace.graph.tables import COPY, SYNC, Floats, launched_before
from foretrace.simulation.task_graph import total

MOSTLY_DONE = 0.5
"""Share of a lone step's device work that is done by the end of its mark, unless the mark is of its launches only."""
ByStream = dict[int, float]
"""A time for each stream, in microseconds."""


class Neighbours(NamedTuple):
    """What a trace has of the steps before and after one."""

    earlier: bool = False
    """Whether it has a step before it."""
    following: ByStream | None = None
    """How long after its mark the first work of the next step is launched on each stream; None without a next."""


class StepWindow(NamedTuple):
    """When a step begins and ends, in microseconds."""

    start: float
    end: float
    mark_ms: float | None = None
    """How long its mark on the host is, where the step is not: it is from device end to device end."""

    @property
    def ms(self) -> float:
        """Its length in milliseconds.

        >>> StepWindow(0.0, 2500.0).ms
        2.5
        """
        return (self.end - self.start) / 1e3


def step_window(graph: Graph, step: str | None) -> StepWindow:
    """When a step begins and ends; where none is marked, at the first event and the last.

    >>> from foretrace.graph import Op, OpTable
    >>> step_window(Graph(OpTable.of([Op("aten::mm", start_us=2.0, end_us=8.0)])), None).ms
    0.006
    """
    mark = next((span for span in graph.steps if span.name == step), None)
    if mark is not None and graph.has_times:
        return window_of(graph, mark, neighbours(graph, mark))
    every = (graph.ops, graph.calls, graph.kernels, graph.activities)
    tables = [table for table in every if np.isfinite(table.start).any()]
    if not tables:
        return StepWindow(0.0, 0.0)
    return StepWindow(min(float(np.nanmin(t.start)) for t in tables), max(float(np.nanmax(t.end)) for t in tables))


def window_of(graph: Graph, mark: Span, beside: Neighbours) -> StepWindow:
    """The window of a step: its mark, begun and ended later by as much as the host is ahead of its device then.

    A host is ahead by how long it launches the first work of a step before the streams that the step uses are done with
    that of earlier ones. A next step that is not in the trace is taken to launch as soon as this one. A step in which
    the host loses some of its lead is shorter than its mark only by what it waits for the device in it. Of one alone
    nobody knows how long its device work is in a loop: it is as long as its mark, unless that is over before half of
    the work is done.
    """
    kernels, launched = graph.kernels, _launched(graph)
    own, earlier = (launched >= mark.start) & (launched < mark.end), launched < mark.start
    if not own.any():
        return StepWindow(mark.start, mark.end)
    if beside.following is None and not beside.earlier:
        return _window_alone(mark, kernels.start[own], kernels.end[own])
    first = _by_stream(graph, own, launched, np.minimum)
    begins = _lead(_by_stream(graph, earlier, kernels.end, np.maximum), first)
    next_us = beside.following or {stream: at - mark.start for stream, at in first.items()}
    done = _by_stream(graph, own | earlier, kernels.end, np.maximum)
    ends = _lead(done, {stream: mark.end + us for stream, us in next_us.items()})
    longer = max(ends - begins, -_waited_us(graph, mark) if beside.earlier else 0.0)
    return StepWindow(mark.start + ends - longer, mark.end + ends, mark.ms) if longer else StepWindow(*mark[1:])


def _window_alone(mark: Span, starts: Floats, ends: Floats) -> StepWindow:
    """The window of a step without one before or after it, whose device work starts and ends so."""
    done = total(np.minimum(starts, mark.end), np.minimum(ends, mark.end))
    launches_only = done < MOSTLY_DONE * total(starts, ends)
    window = StepWindow(float(starts.min()), float(ends.max()), mark.ms)
    return window if launches_only and window.ms > mark.ms else StepWindow(mark.start, mark.end)


def _waited_us(graph: Graph, mark: Span) -> float:
    """How long a host waits for its device in a step: in syncs, and in copies that return when they are done."""
    calls, kernels = graph.calls, graph.kernels
    copies = kernels.call[(kernels.kind == COPY) & (np.append(calls.end, -np.inf)[kernels.call] >= kernels.end)]
    waits = calls.kind == SYNC
    waits[copies] = True
    waits &= (calls.start < mark.end) & (calls.end > mark.start)
    return total(np.maximum(calls.start[waits], mark.start), np.minimum(calls.end[waits], mark.end))


def neighbours(graph: Graph, mark: Span) -> Neighbours:
    """What a trace has of the steps before and after one."""
    begins = min((span.start for span in graph.steps if span.start >= mark.end), default=np.inf)
    launched = _launched(graph)
    later = _by_stream(graph, launched >= begins, launched, np.minimum)
    following = {stream: at - mark.end for stream, at in later.items()} or None
    return Neighbours(any(span.end <= mark.start for span in graph.steps), following)


def _lead(done: ByStream, launched: ByStream) -> float:
    """By how much the first launch of a step comes before the streams that the step uses are done with earlier work."""
    earlier = [done[stream] for stream in launched if stream in done]
    return max(max(earlier) - min(launched.values()), 0.0) if earlier else 0.0


def _by_stream(graph: Graph, which: NDArray[np.bool_], times: Floats, least_or_most: np.ufunc) -> ByStream:
    """The first or the last of some kernels' times on each stream."""
    streams, times = graph.kernels.stream[which], times[which]
    if not len(streams):
        return {}
    order = np.argsort(streams, kind="stable")
    first = np.flatnonzero(np.diff(streams[order], prepend=streams[order[0]] - 1))
    return dict(zip(streams[order][first].tolist(), least_or_most.reduceat(times[order], first).tolist()))


def _launched(graph: Graph) -> Floats:
    """When each kernel was launched: before everything where that was before the trace began, NaN where unknown."""
    kernels = graph.kernels
    if not (kernels.call >= 0).any():
        return kernels.start
    launched = np.append(graph.calls.start, np.nan)[kernels.call]
    launched[launched_before(kernels, kernels, certain=True)] = -np.inf
    return launched
