"""The critical path: the chain of tasks that decided when the last one ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from foretrace.simulation.task_graph import Floats, Longs, TaskGraph, Timeline


class CriticalPath(NamedTuple):
    """Tasks in time order. Leg ``i`` is on ``task[i]`` from ``start[i]`` to ``end[i]``.

    ``gap[i]`` is the time between the end of the leg before and the start of this one: in it, nothing that the
    task graph knows of was running for this task.
    """

    task: Longs
    start: Floats
    end: Floats
    gap: Floats

    @property
    def length(self) -> float:
        """From the first start to the last end, gaps included."""
        return float(self.end[-1] - self.start[0]) if len(self.task) else 0.0


def critical_path(tasks: TaskGraph, timeline: Timeline) -> CriticalPath:
    """Walk back from the last end; at each task take the one it waited for longest.

    On measured times a task may start a little before the one it waits for has ended (a kernel starts while its
    launch call still returns): the leg then ends where the waiting task starts.

    >>> tasks = TaskGraph.of(duration=[2.0, 5.0, 1.0], lane=[0, 1, 0], edges=[(0, 2), (1, 2)])
    >>> path = critical_path(tasks, Timeline(np.array([0.0, 0.0, 5.5]), np.array([2.0, 5.0, 6.5])))
    >>> path.task.tolist(), path.gap.tolist(), path.length
    ([1, 2], [0.0, 0.5], 6.5)
    """
    if not len(tasks):
        return CriticalPath(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    binding = binding_predecessors(tasks, timeline)
    path = np.fromiter(_back_from(int(np.argmax(timeline.end)), binding), np.int64)[::-1]
    start, end = timeline.start[path], timeline.end[path]
    end[:-1] = np.minimum(end[:-1], start[1:])
    gap = np.zeros(len(path))
    gap[1:] = start[1:] - end[:-1]
    return CriticalPath(path, start, end, gap)


def _back_from(task: int, binding: Longs) -> Iterator[int]:
    before = binding.data
    while task >= 0:
        yield task
        task = before[task]


def binding_predecessors(tasks: TaskGraph, timeline: Timeline) -> Longs:
    """For each task, the one of those it waits for that released it last; -1 where it waits for none."""
    binding = np.full(len(tasks), -1, np.int64)
    waiting = np.flatnonzero(np.diff(tasks.first))
    if not len(waiting):
        return binding
    release = np.minimum(timeline.end[tasks.before] + tasks.lag, timeline.start[tasks.after])
    latest = np.maximum.reduceat(release, tasks.first[waiting])
    binds = np.flatnonzero(release == np.repeat(latest, np.diff(tasks.first)[waiting]))
    # Of several that release a task at once, the last to start: it had the least time to spare.
    binds = binds[np.argsort(timeline.start[tasks.before[binds]], kind="stable")]
    binding[tasks.after[binds]] = tasks.before[binds]
    return binding
