"""The host's times in a plain step, from those of a profiled one.

The profiler is taken to need the same time for each thing it notes: its weight. Between two notes that are close
together it can't have taken more than a share of what lies between them, since the host did something there too.

The weight follows from the plain steps. The profiled step is simulated with a weight taken off the host and with
kernels as long as they were; the right weight is the one with which the step takes as long as the plain steps did. The
device may then turn out to be the slower of the two, as it was in the plain steps.
"""

from __future__ import annotations

import numpy as np

from foretrace.graph import Graph, Span
from foretrace.graph.tables import SYNC, Floats, Ints

HALVINGS = 40
KEPT = 0.3
"""The least share of the time between two notes that is the host's own. Were it none, no replay could keep to the
schedule, and whoever is late before a long call ends late."""


class Profiled:
    """A profiled step: what its host did when, and what its device had to do."""

    def __init__(self, graph: Graph, step: Span) -> None:
        self._start, self._end = step.start, step.end
        noted = graph.marks[(graph.marks > step.start) & (graph.marks < step.end)]
        self._marks: Floats = np.concatenate([[step.start], noted, [step.end]])
        kernels = graph.kernels
        launched = kernels.start.copy()
        known = kernels.call >= 0
        launched[known] = graph.calls.start[kernels.call[known]]
        inside = (launched >= step.start) & (launched < step.end)
        order = np.argsort(launched[inside], kind="stable")
        self._launched: Floats = launched[inside][order]
        self._spent: Floats = (kernels.end - kernels.start)[inside][order]
        self._stream: Ints = kernels.stream[inside][order]
        syncs = graph.calls.kind == SYNC
        waits = zip(graph.calls.start[syncs].tolist(), graph.calls.end[syncs].tolist())
        self._waits = sorted((first, last) for first, last in waits if step.start <= first < step.end)

    def host(self, times: Floats, weight: float) -> Floats:
        """When the host comes to these places, with the profiler's weight taken off; waits for the device stay in."""
        between = np.diff(self._marks)
        left = np.maximum(between - weight, KEPT * between)
        return np.asarray(np.interp(times, self._marks, np.concatenate([[0.0], np.cumsum(left)])))

    def step_us(self, weight: float) -> float:
        """How long a step takes whose host has that much less to do; it ends once the device is done."""
        waited = np.cumsum([0.0, *(last - first for first, last in self._waits)])
        ends = np.array([last for _, last in self._waits])
        launched = self.host(self._launched, weight) - waited[np.searchsorted(ends, self._launched)]
        busy: dict[int, float] = {}
        shift, begin = 0.0, 0
        for number, (first, _) in enumerate(self._waits):
            end = int(np.searchsorted(self._launched, first))
            self._run(launched[begin:end] + shift, slice(begin, end), busy)
            here = float(self.host(np.array([first]), weight)[0] - waited[number]) + shift
            shift += max(max(busy.values(), default=0.0) - here, 0.0)
            begin = end
        self._run(launched[begin:] + shift, slice(begin, None), busy)
        host = float(self.host(np.array([self._end]), weight)[0] - waited[-1]) + shift
        return max([host, *busy.values()])

    def _run(self, launched: Floats, which: slice, busy: dict[int, float]) -> None:
        """Let kernels run, each after its launch and after the one before it on its stream."""
        spent, stream = self._spent[which], self._stream[which]
        for lane in np.unique(stream).tolist():
            mine = stream == lane
            before = np.cumsum(spent[mine]) - spent[mine]
            start = np.maximum.accumulate(np.maximum(launched[mine] - before, busy.get(lane, 0.0)))
            busy[lane] = float(start[-1] + before[-1] + spent[mine][-1])

    def weight(self, plain_us: float) -> float:
        """The weight of each thing noted, with which the step is as long as a plain one."""
        low, high = 0.0, float(np.diff(self._marks).max())
        if self.step_us(low) <= plain_us:
            return low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.step_us(middle) > plain_us else (low, middle)
        return high


def unwatched(graph: Graph, times: Floats) -> Floats:
    """Times of a profiled step as they would be in a plain one, from the step's start on.

    >>> from foretrace.graph import OpTable, Timings
    >>> marks, plain = np.array([4.0]), Timings((0.010,))
    >>> graph = Graph(OpTable.of([]), steps=[Span("ProfilerStep#1", 0.0, 12.0)], plain=plain, marks=marks)
    >>> unwatched(graph, np.array([0.0, 4.0, 12.0])).round(3).tolist()
    [0.0, 3.0, 10.0]
    """
    step = next((s for s in graph.steps if s.start <= times.min(initial=np.inf) < s.end), None)
    if step is None:
        return times
    profiled = Profiled(graph, step)
    plain = graph.plain.synced_ms
    return profiled.host(times, profiled.weight(float(np.median(plain)) * 1e3) if plain else 0.0)
