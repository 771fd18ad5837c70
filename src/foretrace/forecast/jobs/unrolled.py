"""Several steps of a job one after the other: how far apart their ends are once the hosts run ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from foretrace.forecast.jobs.agreement import Call, Meeting
from foretrace.forecast.jobs.contention import with_contention
from foretrace.forecast.jobs.rank import PricedRank, part_of
from foretrace.forecast.jobs.together import together
from foretrace.forecast.timetable import timetable
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device

UNROLLED = 4
"""Steps after which the distance between ends has settled."""
MOST_TASKS = 2_000_000
"""Of a step, over all ranks: for larger jobs nobody waits for this figure."""


def back_to_back(
    ranks: Sequence[PricedRank],
    met: Sequence[Meeting],
    us: Floats,
    device: Device,
    slow_host: Mapping[int, float] | None = None,
) -> float | None:
    """Milliseconds from the end of one step to the end of the next; None where the job is too large to unroll.

    Parameters
    ----------
    ranks, met
        The ranks of a step, and their collectives.
    us
        What each of these takes from the last arrival on.
    device
        On which every rank runs.
    slow_host
        For some ranks, how many times as long their hosts take.
    """
    if sum(len(rank.part.program) for rank in ranks) > MOST_TASKS:
        return None
    parts, ends = [], []
    for rank in ranks:
        table = timetable(rank.step.repeated(UNROLLED), device)
        kernel = np.array([c.kernel for c in rank.graph.collectives], np.int64)
        shift = np.arange(UNROLLED)[:, None] * len(rank.step.work)
        part = part_of(table, np.where(kernel >= 0, kernel + shift, -1).ravel())
        parts.append(part.with_slower_host((slow_host or {}).get(rank.graph.rank, 1.0)))
        ends.append(np.searchsorted(table.call, np.arange(1, UNROLLED + 1) * len(rank.step)))
    again = [_in_step(one, turn, ranks) for turn in range(UNROLLED) for one in met]
    whole, shares = together(parts, again, np.tile(us, UNROLLED)), [rank.beside for rank in ranks]
    program, timeline = with_contention(whole, shares, ranks[0].slowing)
    each = [np.maximum.accumulate(program.times(at, timeline).end)[last - 1] for at, last in enumerate(ends)]
    *_, before, after = np.max(each, axis=0)
    return float(after - before) / 1e3


def _in_step(meeting: Meeting, turn: int, ranks: Sequence[PricedRank]) -> Meeting:
    calls = (Call(graph, number + turn * len(ranks[graph].graph.collectives)) for graph, number in meeting.calls)
    return Meeting(meeting.kind, meeting.nbytes, meeting.ranks, tuple(calls))
