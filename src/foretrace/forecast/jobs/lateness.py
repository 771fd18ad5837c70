"""Ranks that do the same are never equally fast: of many, the last one comes later than a typical one.

A rank that stands for others meets these in its collectives. Where processors do the work themselves, each process on
its own, the time of a rank varies from step to step and from rank to rank; all wait for the last one, so that a typical
rank waits for as long as the last of so many is expected to be behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from foretrace.forecast.jobs.agreement import Meeting
from foretrace.forecast.jobs.together import Part, Together, waits_for_arrivals
from foretrace.graph.tables import Floats
from foretrace.simulation.program import Timeline


def expected_last(ranks: int) -> float:
    """How many standard deviations the last of so many is behind the middle (Blom's approximation).

    >>> [round(expected_last(ranks), 2) for ranks in (1, 2, 8)]
    [0.0, 0.59, 1.43]
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def lateness(program: Together, timeline: Timeline, met: Sequence[Meeting], uneven: Sequence[float]) -> Floats:
    """How much later than its arrivals each collective starts, since some of its ranks have no graph of their own.

    Parameters
    ----------
    program, timeline
        The ranks that have one, and when they do what.
    met
        Their collectives.
    uneven
        For each of these ranks the standard deviation of the logarithm of what it takes.

    >>> from foretrace.forecast.jobs.agreement import Call
    >>> from foretrace.forecast.jobs.together import together
    >>> from foretrace.simulation.forward import simulate
    >>> from foretrace.simulation.program import Program
    >>> part = Part(Program.of([100.0, 0.0], [0, 1], [(0, 1)]), np.array([0, 1], np.int8), np.arange(2), np.array([1]))
    >>> met = [Meeting("all_reduce", 8, tuple(range(8)), (Call(0, 0),))]  # one rank for eight works 100 us and arrives
    >>> job = together([part], met, np.array([20.0]))
    >>> lateness(job, simulate(job.program), met, [0.1]).round(1).tolist()
    [14.3]
    """
    late, transfers = np.zeros(len(met)), int(program.first[-1])
    for position, spread in enumerate(uneven):
        if not spread:
            continue
        for number, busy in _busy_before(program, position, timeline):
            meeting = met[number - transfers]
            if len(meeting.ranks) > len(meeting.calls):
                behind = expected_last(len(meeting.ranks)) * spread * busy
                late[number - transfers] = max(late[number - transfers], behind)
    return late


def _busy_before(program: Together, position: int, timeline: Timeline) -> list[tuple[int, float]]:
    """For each collective of a rank its transfer, and how long the rank worked since it last waited for one.

    Ranks do not meet between steps: before the first one it worked since the last one of the step before.
    """
    part, first = program.parts[position], int(program.first[position])
    ours = np.flatnonzero((part.arrival >= 0) & (program.transfer[position] >= 0))
    arrival, transfer = part.arrival[ours], program.transfer[position][ours]
    edge, which = waits_for_arrivals(part)
    holds = ~np.isin(part.program.after[edge], part.arrival)  # that one goes out after another holds up nobody
    waiting = np.full(len(part.arrival), len(part.program))
    np.minimum.at(waiting, which[holds], part.program.after[edge[holds]])
    here = slice(first, first + len(part.program))
    waited = timeline.end[transfer[waiting[ours] < len(part.program)]]
    left = float(timeline.end[here].max(initial=-np.inf) - waited.max()) if len(waited) else 0.0
    begins = float(timeline.start[here].min(initial=np.inf)) - max(left, 0.0)
    found = []
    for task, number in zip(arrival.tolist(), transfer.tolist()):
        done = timeline.end[transfer[waiting[ours] <= _asking(part, task)]]
        since = max(begins, float(done.max(initial=-np.inf)))
        found.append((number, max(float(timeline.start[first + task]) - since, 0.0)))
    return found


def _asking(part: Part, arrival: int) -> int:
    """The last task that a collective waits for on its own rank: who asks for it. What comes later does not matter."""
    before = part.program.before[part.program.first[arrival] : part.program.first[arrival + 1]]
    own = before[~np.isin(before, part.arrival)]
    return int(own.max(initial=-1))
