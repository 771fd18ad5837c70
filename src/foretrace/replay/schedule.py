"""When the original's host would have come to each call, had nobody watched it: what a paced replay keeps to.

A replay has no modules, no autograd and no Python of an optimizer, so its host would run ahead of the original's. Time
in which the host waits for the device is left out, since a replay waits by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Graph
from foretrace.graph.tables import SYNC, Floats
from foretrace.replay.unwatched import unwatched

FEWEST, WIDE = 4, 0.15
"""Where the middle half of at least so many plain steps spreads over this share, their host was busy."""
LONGEST_STEP_US = 600e6
"""A step that claims to be longer is not waited for."""


@dataclass(frozen=True)
class Schedule:
    """Host time in microseconds: before each call, in it, after the last; and which calls wait for the device."""

    gap_us: Floats
    call_us: Floats
    waits: NDArray[np.bool_]
    tail_us: float


def doubt(plain_ms: Sequence[float]) -> str | None:
    """Why the pace of a recording is unsure; None where its plain steps agree.

    >>> doubt([10.0, 10.1, 9.9, 10.0, 30.0])
    >>> doubt([10.0, 14.0, 19.0, 11.0, 16.0])
    'plain steps took from 11.0 to 16.0 ms: something else kept the host busy, and the pace is unsure'
    """
    if len(plain_ms) < FEWEST:
        return None
    low, typical, high = np.quantile(plain_ms, (0.25, 0.5, 0.75)).tolist()
    if high - low <= WIDE * typical:
        return None
    return (
        f"plain steps took from {low:.1f} to {high:.1f} ms: something else kept the host busy, and the pace is unsure"
    )


def schedule_of(graph: Graph, rows: Sequence[int]) -> Schedule:
    """The host's schedule of the calls in these rows, as a plain step has it.

    >>> from foretrace.graph import Op, OpTable, Span
    >>> ops = [Op("aten::mm", start_us=2.0, end_us=6.0), Op("aten::relu", start_us=8.0, end_us=9.0)]
    >>> schedule = schedule_of(Graph(OpTable.of(ops), steps=[Span("ProfilerStep#1", 0.0, 10.0)]), [0, 1])
    >>> schedule.gap_us.tolist(), schedule.call_us.tolist(), schedule.tail_us
    ([2.0, 2.0], [4.0, 1.0], 1.0)
    """
    start, end = graph.ops.start[rows], graph.ops.end[rows]
    count = len(rows)
    if not count or not np.isfinite(start).all() or np.ptp(start) > LONGEST_STEP_US:
        return Schedule(np.zeros(count), np.zeros(count), np.zeros(count, bool), 0.0)
    step = next((s for s in graph.steps if s.start <= start[0] < s.end), None)
    # Every other interval is a call; a call that began while another ran (on another thread) takes what is left of it.
    bounds = np.column_stack([start, end]).reshape(-1)
    bounds = np.concatenate([[step.start if step else start[0]], bounds, [step.end if step else end[-1]]])
    bounds = np.maximum.accumulate(bounds)
    waited, last = _waits(graph, bounds)
    spent = np.diff(unwatched(graph, bounds)) - waited
    if last is not None:  # the wait at the end of the step takes all that follows it with it
        spent[-1] = min(spent[-1], max(last - bounds[-2], 0.0))
    spent = np.maximum(spent, 0.0)
    return Schedule(spent[0:-1:2], spent[1::2], waited[1::2] + waited[0:-1:2] > 0, float(spent[-1]))


def _waits(graph: Graph, bounds: Floats) -> tuple[Floats, float | None]:
    """Time spent in waits for the device in each interval; and the start of the first one after the last call."""
    waited = np.zeros(len(bounds) - 1)
    last: float | None = None
    for row in np.flatnonzero(graph.calls.kind == SYNC).tolist():
        first, until = float(graph.calls.start[row]), float(graph.calls.end[row])
        place = int(np.searchsorted(bounds, first, side="right")) - 1
        if place == len(waited) - 1:
            last = first if last is None else min(last, first)
        elif 0 <= place < len(waited):
            waited[place] += min(until, bounds[place + 1]) - first
    return waited + _waits_for_threads(graph, bounds), last


def _waits_for_threads(graph: Graph, bounds: Floats) -> Floats:
    """Time between calls that passed until a collective ended that other threads of the host did: it was waited for."""
    waited = np.zeros(len(bounds) - 1)
    for row in [c.op for c in graph.collectives if c.kernel < 0 <= c.op]:
        began, ended = float(graph.ops.start[row]), float(graph.ops.end[row])
        place = int(np.searchsorted(bounds, ended, side="right")) - 1
        if graph.ops[row].name.startswith("gloo:") and 0 <= place < len(waited) and place % 2 == 0:
            waited[place] = max(waited[place], ended - max(began, bounds[place]))
    return waited
