"""Kernels of all ranks that run beside a collective take longer, and so does the collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foretrace.forecast.contention import beside, longer, settled, transfer_longer
from foretrace.forecast.jobs.together import Part, Together
from foretrace.forecast.measured import KERNEL
from foretrace.graph.tables import Floats, Longs
from foretrace.simulate.program import Timeline

NONE = np.zeros(0, np.int64)


def with_contention(program: Together, measured: Sequence[Floats | None]) -> tuple[Together, Timeline]:
    """The program with kernels and transfers as slow as what runs beside them makes them, and when all of it runs.

    A transfer is as slow as at the rank where most runs beside it: all wait for the slowest.

    Parameters
    ----------
    program
        All ranks.
    measured
        For each rank the share of each of its kernel tasks that had a collective beside it when it was measured, one
        for all where that is the same; None for a rank whose kernels stay as they are.
    """
    alone = program.program.duration
    tasks = [_kernels(part) if known is not None else NONE for part, known in zip(program.parts, measured)]

    def slowed(timeline: Timeline) -> Floats:
        duration, shares = alone.copy(), np.zeros(len(alone))
        for position, (rows, known) in enumerate(zip(tasks, measured)):
            moved = program.transfer[position]
            moved = moved[moved >= 0]
            if known is not None and len(rows) and len(moved):
                ours = program.first[position] + rows
                duration[ours] = longer(alone[ours], _share(program, position, timeline, rows) - known)
                start, end = timeline.start, timeline.end
                shares[moved] = np.maximum(shares[moved], beside(start[moved], end[moved], start[ours], end[ours]))
        transfers = slice(program.first[-1], None)
        duration[transfers] = transfer_longer(alone[transfers], shares[transfers])
        return duration

    slower, timeline = settled(program.program, slowed)
    return replace(program, program=slower), timeline


def measured_share(part: Part, timeline: Timeline) -> Floats:
    """The share of each of a rank's kernel tasks that had a collective beside it."""
    met = part.arrival[part.arrival >= 0]
    rows = _kernels(part)
    return beside(timeline.start[rows], timeline.end[rows], timeline.start[met], timeline.end[met])


def _kernels(part: Part) -> Longs:
    """Kernel tasks, collectives apart."""
    computes = part.kind == KERNEL
    computes[part.arrival[part.arrival >= 0]] = False
    return np.flatnonzero(computes)


def _share(program: Together, position: int, timeline: Timeline, rows: Longs) -> Floats:
    times, part = program.times(position, timeline), program.parts[position]
    met = part.arrival[part.arrival >= 0]
    return beside(times.start[rows], times.end[rows], times.start[met], times.end[met])
