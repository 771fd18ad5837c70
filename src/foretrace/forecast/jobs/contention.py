"""Kernels of all ranks that run beside a collective take longer, and so does the collective.

So does what processors do themselves, where it was measured how much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foretrace.cost_models.collectives.contention import Contention
from foretrace.forecast.contention import beside, longer, settled, transfer_longer
from foretrace.forecast.jobs.together import Part, Together
from foretrace.forecast.measured import HOST, KERNEL
from foretrace.graph.tables import Floats, Longs
from foretrace.simulation.program import Timeline

NONE = np.zeros(0, np.int64)


def with_contention(
    program: Together, measured: Sequence[Floats | None], law: Contention | None = None
) -> tuple[Together, Timeline]:
    """The program with kernels and transfers as slow as what runs beside them makes them, and when all of it runs.

    A transfer is as slow as at the rank where most runs beside it: all wait for the slowest.

    Parameters
    ----------
    program
        All ranks.
    measured
        For each rank the share of each of its kernel tasks that had a collective beside it when it was measured, one
        for all where that is the same; None for a rank whose kernels stay as they are.
    law
        How they slow each other; as on GPUs, where left out.

    >>> from foretrace.forecast.jobs.agreement import Call, Meeting
    >>> from foretrace.forecast.jobs.together import together
    >>> from foretrace.simulation.program import Program
    >>> program = Program.of([0.0, 80.0], [1, 0], [])  # a collective of 100 us, and a kernel beside it
    >>> rank = Part(program, np.full(2, KERNEL, np.int8), np.arange(2, dtype=np.int32), np.array([0]))
    >>> job = together([rank], [Meeting("all_reduce", 8, (0, 1), (Call(0, 0),))], np.array([100.0]))
    >>> slower, _ = with_contention(job, [np.zeros(1)], Contention(1.25, 0.0, "made up", 1.0, "made up"))
    >>> slower.program.duration.tolist()
    [0.0, 100.0, 100.0]
    """
    alone = program.program.duration
    work = _kernels if law is None else _work
    tasks = [work(part) if known is not None else NONE for part, known in zip(program.parts, measured)]

    def slowed(timeline: Timeline) -> Floats:
        duration, shares = alone.copy(), np.zeros(len(alone))
        for position, (rows, known) in enumerate(zip(tasks, measured)):
            moved = program.transfer[position]
            moved = moved[moved >= 0]
            if known is not None and len(rows) and len(moved):
                ours = program.first[position] + rows
                start, end = timeline.start, timeline.end
                whole = law is None or law.spins
                met = _collectives(program, position, timeline) if whole else (start[moved], end[moved])
                duration[ours] = longer(alone[ours], beside(start[ours], end[ours], *met) - known, law)
                shares[moved] = np.maximum(shares[moved], beside(start[moved], end[moved], start[ours], end[ours]))
        transfers = slice(program.first[-1], None)
        duration[transfers] = transfer_longer(alone[transfers], shares[transfers], law)
        return duration

    slower, timeline = settled(program.program, slowed)
    return replace(program, program=slower), timeline


def measured_share(part: Part, timeline: Timeline) -> Floats:
    """The share of each of a rank's kernel tasks that had a collective beside it; of its host's where it has none."""
    met = part.arrival[part.arrival >= 0]
    rows = _work(part)
    return beside(timeline.start[rows], timeline.end[rows], timeline.start[met], timeline.end[met])


def _work(part: Part) -> Longs:
    """Kernel tasks, collectives apart; where there are none the host does the work."""
    computes = _kernels(part)
    return computes if len(computes) else np.flatnonzero(part.kind == HOST)


def _kernels(part: Part) -> Longs:
    """Kernel tasks, collectives apart."""
    computes = part.kind == KERNEL
    computes[part.arrival[part.arrival >= 0]] = False
    return np.flatnonzero(computes)


def _collectives(program: Together, position: int, timeline: Timeline) -> tuple[Floats, Floats]:
    """When those of a rank begin and end, waiting included."""
    times, arrival = program.times(position, timeline), program.parts[position].arrival
    met = arrival[arrival >= 0]
    return times.start[met], times.end[met]
