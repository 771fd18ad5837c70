"""Simulated collectives in the form in which measured ones are looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from foretrace.forecast.collectives import Meetings
from foretrace.forecast.jobs.agreement import Meeting
from foretrace.forecast.jobs.together import Together
from foretrace.graph import Graph
from foretrace.simulation.program import Timeline


def meeting_times(graphs: list[Graph], met: Sequence[Meeting], program: Together, timeline: Timeline) -> list[Meetings]:
    """The collectives of each group, in the order they began."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, meeting in enumerate(met):
        members = tuple(call.graph for call in meeting.calls)
        if len(set(members)) == len(members) == len(program.arrivals[number]):
            groups[members].append(number)
    first = int(program.first[-1])
    found = []
    for members, numbers in groups.items():
        numbers.sort(key=lambda number: timeline.start[first + number])
        start = np.array([timeline.start[program.arrivals[number]] for number in numbers])
        end = np.broadcast_to(timeline.end[first + np.array(numbers)][:, None], start.shape)
        calls = [met[number].calls for number in numbers]
        kernel = [[graphs[call.graph].collectives[call.number].kernel for call in some] for some in calls]
        sizes = [met[number].nbytes for number in numbers]
        found.append(Meetings(
            group=graphs[members[0]].collectives[calls[0][0].number].group,
            members=list(members),
            kinds=[met[number].kind for number in numbers],
            nbytes=np.array([size if isinstance(size, int) else max(size) for size in sizes], np.int64),
            kernel=np.array(kernel, np.int64),
            start=start,
            end=np.array(end),
        ))  # fmt: skip
    return found
