"""Who waits for whom within one rank, as a trace shows it.

Rows are numbered as in the rank's tables: host segments first, then kernels. Each function gives (before, after)
pairs, one column each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.forecast.host import SYNC, Segments
from foretrace.forecast.intervals import previous_on_lane
from foretrace.graph import Graph
from foretrace.graph.tables import WAIT_EVENT, CallTable, Floats, KernelTable, Longs

Pairs = NDArray[np.int32]

CLOCKS_AGREE_US = 10.0
"""Host and devices have clocks of their own; what these put less than this apart may be at the same time."""


def pairs(before: NDArray[Any], after: NDArray[Any]) -> Pairs:
    """Two columns as one array.

    >>> pairs(np.array([0, 1]), np.array([2, 2])).tolist()
    [[0, 2], [1, 2]]
    """
    return np.stack([before, after], axis=1, dtype=np.int32, casting="same_kind")


def lane_order(lane: NDArray[Any], start: Floats) -> Pairs:
    """A thread or a stream does one thing after the other.

    >>> lane_order(np.array([7, 20, 7]), np.array([0.0, 1.0, 2.0])).tolist()
    [[0, 2]]
    """
    previous = previous_on_lane(lane, start)
    return pairs(previous[previous >= 0], np.flatnonzero(previous >= 0))


def handovers(segments: Segments) -> Pairs:
    """A thread that waited for another one goes on when that one stops."""
    found = [np.zeros((0, 2), np.int32)]
    for thread in np.unique(segments.after_thread[segments.after_thread >= 0]):
        after = np.flatnonzero(segments.after_thread == thread)
        theirs = np.flatnonzero(segments.thread == thread)
        last = np.searchsorted(segments.end[theirs], segments.start[after], "right") - 1
        found.append(pairs(theirs[last], after)[last >= 0])
    return np.concatenate(found)


def launches(graph: Graph, segments: Segments) -> Pairs:
    """A kernel starts after the call that launched it: (segment, kernel)."""
    segment = np.full(len(graph.calls) + 1, -1)
    for_call = segments.call >= 0
    # A blocking copy has two segments; the first is its launch.
    segment[segments.call[for_call][::-1]] = np.flatnonzero(for_call)[::-1]
    launching = np.unique(graph.kernels.call[graph.kernels.call >= 0])
    inside_another = launching[segment[launching] < 0]
    segment[inside_another] = _segments_at(segments, graph.calls.rows(inside_another))
    launched_by = segment[graph.kernels.call]
    known = (graph.kernels.call >= 0) & (launched_by >= 0)
    return pairs(launched_by[known], np.flatnonzero(known))


def _segments_at(segments: Segments, calls: CallTable) -> Longs:
    """The segment in which each call began; -1 for none."""
    found = np.full(len(calls), -1)
    for thread in np.unique(calls.thread):
        ours, theirs = np.flatnonzero(segments.thread == thread), np.flatnonzero(calls.thread == thread)
        at = np.searchsorted(segments.start[ours], calls.start[theirs], "right")
        found[theirs] = np.append(-1, ours)[at]
    return found


class Streams:
    """The kernels of each stream in order, and when each was launched."""

    def __init__(self, graph: Graph) -> None:
        kernels = graph.kernels
        self.kernels: KernelTable = kernels
        called = np.append(graph.calls.start, -np.inf)[kernels.call]
        self.rows: list[Longs] = [np.flatnonzero(kernels.stream == stream) for stream in np.unique(kernels.stream)]
        self.rows = [rows[np.argsort(kernels.start[rows], kind="stable")] for rows in self.rows]
        self.launched: list[Floats] = [np.maximum.accumulate(called[rows]) for rows in self.rows]

    def last_before(self, stream: int, time: Floats) -> Longs:
        """On a stream, the last kernel launched before each time; -1 for none."""
        at = np.searchsorted(self.launched[stream], time, "left") - 1
        return np.where(at >= 0, self.rows[stream][at], -1)

    def first_after(self, stream: int, time: Floats) -> Longs:
        """On a stream, the first kernel launched after each time; -1 for none."""
        return np.append(self.rows[stream], -1)[np.searchsorted(self.launched[stream], time, "left")]


def event_waits(graph: Graph, streams: Streams) -> Pairs:
    """A stream that was told to wait runs its next kernel after the others' last: (kernel, kernel).

    A trace names neither the stream that waits nor the event, so each stream's next kernel may be the one that waits
    for each other stream's last, and those that did not are left out by their times.
    """
    waits = graph.calls.start[graph.calls.kind == WAIT_EVENT]
    found = [np.zeros((0, 2), np.int32)]
    for one in range(len(streams.rows)):
        last = streams.last_before(one, waits)
        for other in range(len(streams.rows)):
            if other != one:
                found.append(pairs(last, streams.first_after(other, waits)))
    edges = np.concatenate(found)
    edges = edges[(edges >= 0).all(axis=1)]
    return edges[graph.kernels.end[edges[:, 0]] <= graph.kernels.start[edges[:, 1]]]


def sync_waits(segments: Segments, streams: Streams) -> Pairs:
    """A sync returns after the last kernel launched before it on each stream it waited for: (kernel, segment).

    Which streams those are is seen from the times: a kernel that was still running when the call returned was not
    waited for.
    """
    syncs = np.flatnonzero(segments.kind == SYNC)
    found = [np.zeros((0, 2), np.int32)]
    for stream in range(len(streams.rows)):
        # The copy that a blocking copy waits for was launched by the call itself, just before.
        last = streams.last_before(stream, np.nextafter(segments.start[syncs], np.inf))
        waited = (last >= 0) & (streams.kernels.end[last] <= segments.end[syncs] + CLOCKS_AGREE_US)
        found.append(pairs(last, syncs)[waited])
    return np.concatenate(found)
