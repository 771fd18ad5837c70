"""All ranks as one program: a collective is one task of all its ranks.

It starts when the last of them has arrived, and whoever waits for a rank's part in it waits for all of it. Ranks lie
one behind the other, each with its own tasks in order; the transfers of collectives come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from foretrace.forecast.jobs.agreement import Meeting
from foretrace.forecast.measured import HOST, TRANSFER, Measured
from foretrace.graph.tables import Floats, Ints, Longs, Small
from foretrace.simulation.program import Program, Timeline


@dataclass(frozen=True)
class Part:
    """One rank's tasks. Those that are its part in a collective take no time: they are its arrival."""

    program: Program
    kind: Small
    """HOST or KERNEL, as in `Measured`."""
    row: Ints
    """Row in the rank's segments or kernels."""
    arrival: Longs
    """For each collective of the rank's graph the task that is its arrival; -1 for none."""

    def scaled(self, factor: Floats) -> Part:
        """The same with all tasks that many times as long."""
        return replace(self, program=replace(self.program, duration=self.program.duration * factor))

    def with_slower_host(self, times: float) -> Part:
        """The same with a host that takes so many times as long."""
        return self.scaled(np.where(self.kind == HOST, times, 1.0))


@dataclass(frozen=True)
class Together:
    """The program of all ranks, and what its tasks stand for."""

    parts: Sequence[Part]
    program: Program
    first: Longs
    """Where the tasks of each part begin; the last entry is where the transfers do."""
    arrivals: list[Longs]
    """The tasks that arrive for each transfer."""
    transfer: list[Longs]
    """For each part's collectives the task that is its transfer; -1 for none."""

    @cached_property
    def graph(self) -> Ints:
        """The position of each task's graph; that of a transfer is told by who came last."""
        positions = np.arange(len(self.parts), dtype=np.int32)
        return np.repeat(positions, np.diff(self.first))

    def delayed(self, us: Floats) -> Together:
        """The same with each transfer so much later than the last arrival."""
        lag, arriving = self.program.lag.copy(), [len(tasks) for tasks in self.arrivals]
        lag[len(lag) - sum(arriving) :] = np.repeat(us, arriving)
        return replace(self, program=replace(self.program, lag=lag))

    def measured(self, timeline: Timeline) -> Measured:
        """The tasks as those of a measured job: a transfer is told of with the rank that arrived last."""
        arrivals = (task[np.argmax(timeline.start[task])] for task in self.arrivals)
        last = np.fromiter(arrivals, np.int64, len(self.arrivals))
        transfers = np.full(len(last), TRANSFER, np.int8)
        row = np.concatenate([part.row for part in self.parts])
        return Measured(
            self.program,
            timeline,
            np.concatenate([*(part.kind for part in self.parts), transfers]),
            np.concatenate([self.graph, self.graph[last]]),
            np.concatenate([row, row[last]]),
        )

    def times(self, position: int, timeline: Timeline) -> Timeline:
        """When the tasks of one part start and end: a collective's from the arrival to the end of the transfer."""
        here = slice(self.first[position], self.first[position + 1])
        start, end = timeline.start[here], timeline.end[here].copy()
        arrival, transfer = self.parts[position].arrival, self.transfer[position]
        met = (arrival >= 0) & (transfer >= 0)
        end[arrival[met]] = timeline.end[transfer[met]]
        return Timeline(start, end)


def together(parts: Sequence[Part], meetings: Sequence[Meeting], us: Floats) -> Together:
    """One program of all ranks.

    Parameters
    ----------
    parts
        The ranks that have a graph, in the order of the job's graphs.
    meetings
        Their collectives.
    us
        What each of these takes from the last arrival on.

    >>> from foretrace.forecast.jobs.agreement import Call
    >>> from foretrace.simulation.forward import simulate
    >>> def rank(works):  # works so long, arrives, and goes on for 1 us when all are there
    ...     program = Program.of([works, 0.0, 1.0], [0, 1, 0], [(0, 1), (1, 2)])
    ...     return Part(program, np.array([0, 1, 0], np.int8), np.arange(3, dtype=np.int32), np.array([1]))
    >>> met = Meeting("all_reduce", 8, (0, 1), (Call(0, 0), Call(1, 0)))
    >>> simulate(together([rank(1.0), rank(3.0)], [met], np.array([0.5])).program).span
    4.5
    """
    sizes = np.array([len(part.program) for part in parts], np.int64)
    first = np.concatenate([[0], np.cumsum(sizes)])
    transfer = [np.full(len(part.arrival), -1, np.int64) for part in parts]
    arrivals = []
    for number, meeting in enumerate(meetings, int(first[-1])):
        tasks = []
        for graph, which in meeting.calls:
            task = parts[graph].arrival[which]
            if task >= 0:
                transfer[graph][which] = number
                tasks.append(first[graph] + task)
        arrivals.append(np.array(tasks, np.int64))
    return Together(parts, _joined(parts, first, transfer, arrivals, us), first, arrivals, transfer)


def _joined(parts: Sequence[Part], first: Longs, transfer: list[Longs], arrivals: list[Longs], us: Floats) -> Program:
    programs = [part.program for part in parts]
    tasks = int(first[-1])
    edges = np.concatenate([[0], np.cumsum([len(program.before) for program in programs])])
    known, arriving = int(edges[-1]), np.array([len(some) for some in arrivals], np.int64)
    duration, lane = np.empty(tasks + len(us)), np.empty(tasks + len(us), np.int32)
    begins = np.empty(tasks + len(us) + 1, np.int64)
    before, lag = np.empty(known + int(arriving.sum()), np.int32), np.empty(known + int(arriving.sum()))
    release = np.zeros(tasks + len(us) if any(len(program.release) for program in programs) else 0)
    lanes = 0
    waits_for: dict[tuple[int, int], tuple[Longs, Longs]] = {}
    for position, (part, program) in enumerate(zip(parts, programs)):
        here, there = slice(first[position], first[position + 1]), slice(edges[position], edges[position + 1])
        duration[here], lag[there] = program.duration, program.lag
        duration[here][part.arrival[part.arrival >= 0]] = 0.0
        np.add(program.lane, np.int32(lanes), out=lane[here])
        np.add(program.first[:-1], edges[position], out=begins[here])
        np.add(program.before, np.int32(first[position]), out=before[there])
        alike = id(program.before), id(part.arrival)
        if alike not in waits_for:
            waits_for[alike] = waits_for_arrivals(part)
        # Whoever waits for an arrival waits for the transfer.
        edge, which = waits_for[alike]
        met = transfer[position][which] >= 0
        before[there][edge[met]] = transfer[position][which[met]]
        if len(program.release):
            release[here] = program.release
        lanes += int(program.lane.max(initial=-1)) + 1
    duration[tasks:] = us
    begins[tasks:] = known + np.concatenate([[0], np.cumsum(arriving)])
    before[known:], lag[known:] = np.concatenate(arrivals) if arrivals else [], 0.0
    lane[tasks:] = np.arange(lanes, lanes + len(us))
    rows = np.concatenate([first[:-1], np.arange(tasks, tasks + len(us))])
    return Program(duration, lane, begins, before, lag, release, rows)


def waits_for_arrivals(part: Part) -> tuple[Longs, Longs]:
    """The edges from a rank's arrivals, and which of its collectives each is from.

    >>> program = Program.of([5.0, 0.0, 1.0], [0, 1, 0], [(0, 1), (1, 2)])  # works, arrives, and goes on then
    >>> rank = Part(program, np.array([0, 1, 0], np.int8), np.arange(3, dtype=np.int32), np.array([1]))
    >>> edges, collectives = waits_for_arrivals(rank)
    >>> program.after[edges].tolist(), collectives.tolist()
    ([2], [0])
    """
    number = np.full(len(part.program), -1)
    there = np.flatnonzero(part.arrival >= 0)
    number[part.arrival[there]] = there
    edge = np.flatnonzero(number[part.program.before] >= 0)
    return edge, number[part.program.before[edge]]
