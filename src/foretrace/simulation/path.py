"""The chain of tasks that decided when the last one ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from foretrace.simulation.program import Program, Timeline
from foretrace.simulation.turns import Floats, Longs


@dataclass(frozen=True)
class Path:
    """Tasks in time order. Leg ``i`` is on ``task[i]`` from ``start[i]`` to ``end[i]``.

    ``gap[i]`` is the time between the end of the leg before and the start of this one: in it, nothing that the
    program knows of was running for this task.
    """

    task: Longs
    start: Floats
    end: Floats
    gap: Floats

    @property
    def length(self) -> float:
        """From the first start to the last end, gaps included."""
        return float(self.end[-1] - self.start[0]) if len(self.task) else 0.0


def critical_path(program: Program, timeline: Timeline) -> Path:
    """Walk back from the last end; at each task take the one it waited for longest.

    On measured times a task may start a little before the one it waits for has ended (a kernel starts while its
    launch call still returns): the leg then ends where the waiting task starts.

    >>> program = Program.of(duration=[2.0, 5.0, 1.0], lane=[0, 1, 0], edges=[(0, 2), (1, 2)])
    >>> path = critical_path(program, Timeline(np.array([0.0, 0.0, 5.5]), np.array([2.0, 5.0, 6.5])))
    >>> path.task.tolist(), path.gap.tolist(), path.length
    ([1, 2], [0.0, 0.5], 6.5)
    """
    if not len(program):
        return Path(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
    binding = binding_predecessors(program, timeline)
    tasks = np.fromiter(_back_from(int(np.argmax(timeline.end)), binding), np.int64)[::-1]
    start, end = timeline.start[tasks], timeline.end[tasks]
    end[:-1] = np.minimum(end[:-1], start[1:])
    gap = np.zeros(len(tasks))
    gap[1:] = start[1:] - end[:-1]
    return Path(tasks, start, end, gap)


def _back_from(task: int, binding: Longs) -> Iterator[int]:
    before = binding.data
    while task >= 0:
        yield task
        task = before[task]


def binding_predecessors(program: Program, timeline: Timeline) -> Longs:
    """For each task, the one of those it waits for that released it last; -1 where it waits for none.

    >>> program = Program.of(duration=[2.0, 5.0, 1.0], lane=[0, 1, 0], edges=[(0, 2), (1, 2)])
    >>> binding_predecessors(program, Timeline(np.array([0.0, 0.0, 5.5]), np.array([2.0, 5.0, 6.5]))).tolist()
    [-1, -1, 1]
    """
    binding = np.full(len(program), -1, np.int64)
    waiting = np.flatnonzero(np.diff(program.first))
    if not len(waiting):
        return binding
    release = np.minimum(timeline.end[program.before] + program.lag, timeline.start[program.after])
    latest = np.maximum.reduceat(release, program.first[waiting])
    binds = np.flatnonzero(release == np.repeat(latest, np.diff(program.first)[waiting]))
    # Of several that release a task at once, the last to start: it had the least time to spare.
    binds = binds[np.argsort(timeline.start[program.before[binds]], kind="stable")]
    binding[program.after[binds]] = program.before[binds]
    return binding
