"""A rank on its own machine: its host and its kernels as they were measured, its waiting left to the simulation.

Every task keeps its own time, and what held it up becomes an edge. Between the end of what a task waited for and its
start lies a latency: the usual one, or a longer one where the device stood still for a reason that the trace does not
show, which is kept as well. What was already running when the trace began starts when it did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foretrace.forecast.critical import LATENCY_US
from foretrace.forecast.dependencies import pairs
from foretrace.forecast.host import Segments
from foretrace.forecast.jobs.contention import measured_share
from foretrace.forecast.jobs.together import Part
from foretrace.forecast.measured import HOST, KERNEL, Measured, in_time_order, rank_tasks
from foretrace.graph import Graph, Span
from foretrace.graph.tables import Floats, Ints, Longs, distinct
from foretrace.simulation.program import Program, Timeline

STEP = "predicted step"


class Kept(NamedTuple):
    """A measured rank."""

    part: Part
    stall: Floats
    """How much longer than usual each task waited, with nothing seen to hold it up: its lags hold that."""
    beside: Floats
    """The share of each of its kernels that had a collective beside it."""


def kept(graph: Graph, segments: Segments) -> Kept:
    """A measured rank's tasks.

    Parameters
    ----------
    graph
        The step, and what ran on the device before its own kernels.
    segments
        Its host time.

    >>> from foretrace.forecast.host import host_segments
    >>> from foretrace.graph import Op, OpTable
    >>> ops = [Op("aten::mm", start_us=0.0, end_us=8.0), Op("aten::relu", start_us=10.0, end_us=15.0)]
    >>> step = Graph(OpTable.of(ops))
    >>> kept(step, host_segments(step)).part.program.duration.tolist()
    [8.0, 2.0, 5.0]
    """
    seen = in_time_order(rank_tasks(0, graph, segments))
    program, timeline = _without_guesses(graph, seen), seen.timeline
    gap = timeline.start[program.after] - timeline.end[program.before]
    way = seen.kind[program.before] * 2 + seen.kind[program.after]
    lag = np.minimum(gap, _usual(program, timeline, gap, way)[way])
    known = np.full(len(program), -np.inf)
    np.maximum.at(known, program.after, timeline.end[program.before] + lag)
    free = np.isneginf(known)
    stall = np.where(free, 0.0, timeline.start - known)
    task = np.full(len(graph.kernels), -1, np.int64)
    on_device = np.flatnonzero(seen.kind == KERNEL)
    task[seen.row[on_device]] = on_device
    arrival = np.array([task[c.kernel] if c.kernel >= 0 else -1 for c in graph.collectives], np.int64)
    whole = replace(program, lag=lag + stall[program.after], release=np.where(free, timeline.start, 0.0))
    part = Part(whole, seen.kind, seen.row, arrival)
    return Kept(part, stall, measured_share(part, timeline))


def _without_guesses(graph: Graph, seen: Measured) -> Program:
    """The program in which nothing of this step's host holds up what was launched before it."""
    program, kernels = seen.program, graph.kernels
    earlier = np.append((kernels.call < 0) & (kernels.op < 0), False)[np.where(seen.kind == KERNEL, seen.row, -1)]
    holds = ~(earlier[program.after] & (seen.kind[program.before] == HOST))
    return Program.of(program.duration, program.lane, pairs(program.before[holds], program.after[holds]))


def _usual(program: Program, timeline: Timeline, gap: Floats, way: Longs) -> Floats:
    """How long after what it waited for last a task starts, by whether these are on the host or the device."""
    last = np.full(len(program), -np.inf)
    np.maximum.at(last, program.after, timeline.end[program.before])
    decides = (timeline.end[program.before] == last[program.after]) & (gap <= LATENCY_US)
    usual = np.zeros(4)
    for one in range(4):
        gaps = gap[decides & (way == one)]
        usual[one] = np.median(gaps) if len(gaps) else LATENCY_US
    return usual


def at_new_times(graph: Graph, segments: Segments, part: Part, times: Timeline) -> tuple[Graph, Segments]:
    """A measured rank as it runs in a simulation: its kernels and host time there, and its calls moved with these."""
    hosts, kernels = np.flatnonzero(part.kind == HOST), np.flatnonzero(part.kind == KERNEL)
    moved = segments.rows(np.ones(len(segments), bool))
    moved.start[part.row[hosts]], moved.end[part.row[hosts]] = times.start[hosts], times.end[hosts]
    # A wait begins when the host is there, and not when what it waits for is done.
    follows = np.flatnonzero(segments.thread[1:] == segments.thread[:-1]) + 1
    adjacent = follows[segments.start[follows] == segments.end[follows - 1]]
    moved.start[adjacent] = moved.end[adjacent - 1]
    table, ops, calls = replace(graph.kernels), replace(graph.ops), replace(graph.calls)
    table.start, table.end = graph.kernels.start.copy(), graph.kernels.end.copy()
    table.start[part.row[kernels]], table.end[part.row[kernels]] = times.start[kernels], times.end[kernels]
    for one in (ops, calls):
        one.start = _warped(one.start, one.thread, segments, moved)
        one.end = _warped(one.end, one.thread, segments, moved)
    span = Span(STEP, float(times.start.min(initial=np.inf)), float(times.end.max(initial=-np.inf)))
    return replace(graph, kernels=table, ops=ops, calls=calls, steps=[span], allocated=(), slowdown=1.0), moved


def _warped(time: Floats, thread: Ints, old: Segments, new: Segments) -> Floats:
    """Times on each thread, moved as the host time around them was."""
    result = time.copy()
    for one in distinct(old.thread):
        here, there = np.flatnonzero(old.thread == one), thread == one
        was = np.stack([old.start[here], old.end[here]], axis=1).ravel()
        then = np.stack([new.start[here], new.end[here]], axis=1).ravel()
        inside = np.interp(time[there], was, then)
        result[there] = inside + np.minimum(time[there] - was[0], 0.0) + np.maximum(time[there] - was[-1], 0.0)
    return result
