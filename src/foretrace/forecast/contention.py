"""Kernels and collectives that run beside each other take longer: simulated again until nothing changes any more.

Kernel models know kernels alone, and fabrics transfers alone: what overlap adds comes on top, in a job and in one rank
of it that is predicted alone. Measured kernels already hold what it added in the measured run: on their own machine
only what the overlap is more or less by counts, and on another they stay as they are. So does what a CPU does alone;
in a job it is slowed as its fabric was measured, see `foretrace.forecast.jobs.crowded`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from foretrace.cost_models.contention import Contention, contention
from foretrace.forecast.device_work import as_measured
from foretrace.forecast.intervals import merged
from foretrace.forecast.timetable import KERNEL, Timetable
from foretrace.forecast.work import Work
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE, Floats
from foretrace.platform.platform import Platform
from foretrace.simulation.forward import simulate
from foretrace.simulation.program import Program, Timeline

PASSES = 4
SETTLED_US = 1.0
"""A change of the last end below which another pass is not worth its time."""


def beside(start: Floats, end: Floats, other_start: Floats, other_end: Floats) -> Floats:
    """The share of each interval that lies inside any of some others.

    >>> beside(np.array([0.0, 8.0]), np.array([4.0, 9.0]), np.array([3.0]), np.array([10.0])).tolist()
    [0.25, 1.0]
    """
    if not len(other_start):
        return np.zeros(len(start))
    begins, ends, _ = merged(other_start, other_end)
    covered = np.append(0.0, np.cumsum(ends - begins))

    def until(time: Floats) -> Floats:
        at = np.searchsorted(begins, time, "right") - 1
        inside = covered[at] + np.clip(time - begins[at], 0.0, (ends - begins)[at])
        return np.where(at >= 0, inside, 0.0)

    return np.asarray((until(end) - until(start)) / np.maximum(end - start, 1e-9))


def contends(calls: Graph, platform: Platform, kernels: str | None) -> bool:
    """Whether a rank's kernels are to take longer beside its collectives; ``kernels`` is as in `foretrace.predict`."""
    return platform.device.kind != "cpu" and not as_measured(calls, platform, kernels)


def run_alone(table: Timetable, work: Work, slowed: bool) -> tuple[Timetable, Timeline]:
    """One rank and when all of it runs; kernels and collectives beside each other are slowed where they shall be."""
    device = np.flatnonzero(table.kind == KERNEL)
    talks = work.kind[table.kernel[device]] == COLLECTIVE
    if not slowed or not talks.any():
        return table, simulate(table.program)
    rows, met, alone = device[~talks], device[talks], table.program.duration

    def slow(timeline: Timeline) -> Floats:
        start, end, duration = timeline.start, timeline.end, alone.copy()
        duration[rows] = longer(alone[rows], beside(start[rows], end[rows], start[met], end[met]))
        duration[met] = transfer_longer(alone[met], beside(start[met], end[met], start[rows], end[rows]))
        return duration

    program, timeline = settled(table.program, slow)
    return replace(table, program=program), timeline


def longer(us: Floats, share: Floats, law: Contention | None = None) -> Floats:
    """What kernels take when a collective runs beside them for a share of their time more than it did.

    By the law of GPUs, where none is given.
    """
    return np.maximum(us + (law or contention()).longer(us, share), 0.0)


def transfer_longer(us: Floats, share: Floats, law: Contention | None = None) -> Floats:
    """What transfers take when kernels run beside them for a share of their time; ``law`` as in `longer`."""
    return us + (law or contention()).transfer_longer(us, share)


def settled(program: Program, slowed: Callable[[Timeline], Floats]) -> tuple[Program, Timeline]:
    """The program with durations that fit the times they lead to, and these."""
    timeline = simulate(program)
    for _ in range(PASSES):
        program, before = replace(program, duration=slowed(timeline)), timeline
        timeline = simulate(program)
        if abs(timeline.end.max(initial=0.0) - before.end.max(initial=0.0)) < SETTLED_US:
            break
    return program, timeline
