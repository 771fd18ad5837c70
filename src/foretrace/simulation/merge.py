"""The tasks of all ranks as one task graph: a collective is one task of all its ranks.

It starts when the last of them has arrived, and whatever waits for one rank's part in it waits for all of it. Ranks
stand one behind the other, each with its own tasks in order; the transfers of collectives come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.simulation.task_graph import TRANSFER, Floats, Longs, TaskGraph, Timeline

Calls = Sequence[tuple[int, int]]
"""The calls of one collective: the position of a rank, and which of that rank's collectives it is."""


@dataclass(frozen=True, eq=False)
class RankTasks:
    """The tasks of one rank. Those that are its part in a collective take no time: they are its arrival."""

    tasks: TaskGraph
    arrival: Longs
    """For each collective of the rank's graph the task that is its arrival; -1 for none."""
    overlapping: NDArray[np.bool_] | None = None
    """Whether each collective takes no part of what does the rank's work, as one that a thread of the host runs beside
    a GPU; None where all do."""

    leaves: NDArray[np.bool_] | None = None
    """Whether the rank goes on in each collective before the last one has arrived, as the root of a broadcast; None
    where it stays in all of them."""

    def contending(self, tasks: Longs) -> Longs:
        """Of tasks given for each collective, -1 for none, those that slow the rank's work, and are slowed by it."""
        return tasks[(tasks >= 0) if self.overlapping is None else (tasks >= 0) & ~self.overlapping]

    @cached_property
    def stays(self) -> NDArray[np.bool_]:
        """Whether the rank arrives at each collective and waits for the others."""
        return self.arrival >= 0 if self.leaves is None else (self.arrival >= 0) & ~self.leaves

    @cached_property
    def arrival_edges(self) -> tuple[Longs, Longs]:
        """The edges from the rank's arrivals, and which of its collectives each is from.

        >>> tasks = TaskGraph.of([5.0, 0.0, 1.0], [0, 1, 0], [(0, 1), (1, 2)])  # works, arrives, and goes on then
        >>> edges, collectives = RankTasks(tasks, np.array([1])).arrival_edges
        >>> tasks.after[edges].tolist(), collectives.tolist()
        ([2], [0])
        """
        number = np.full(len(self.tasks), -1)
        there = np.flatnonzero(self.arrival >= 0)
        number[self.arrival[there]] = there
        edge = np.flatnonzero(number[self.tasks.before] >= 0)
        return edge, number[self.tasks.before[edge]]

    def scaled(self, factor: Floats) -> RankTasks:
        """These tasks with each duration multiplied by a factor."""
        scaled = replace(self, tasks=replace(self.tasks, duration=self.tasks.duration * factor))
        vars(scaled)["arrival_edges"] = self.arrival_edges  # the edges stay: thousands of ranks share them
        return scaled

    def with_slower_host(self, times: float) -> RankTasks:
        """These tasks with a host that takes so many times as long."""
        return self.scaled(np.where(self.tasks.on_host, times, 1.0))


class JobTasks(NamedTuple):
    """The task graph of all ranks, and where ranks and transfers stand in it."""

    ranks: Sequence[RankTasks]
    tasks: TaskGraph
    first: Longs
    """Where the tasks of each rank begin; the last entry is where the transfers do."""
    arrivals: list[Longs]
    """The tasks that arrive for each transfer."""
    transfer: list[Longs]
    """For each rank's collectives the task that is its transfer; -1 for none."""

    def delayed(self, us: Floats) -> JobTasks:
        """The tasks with each transfer so much later than its last arrival."""
        lag, arriving = self.tasks.lag.copy(), [len(tasks) for tasks in self.arrivals]
        lag[len(lag) - sum(arriving) :] = np.repeat(us, arriving)
        return self._replace(tasks=replace(self.tasks, lag=lag))

    def labelled(self, timeline: Timeline) -> TaskGraph:
        """The task graph with kind, rank and row of each task; a transfer has those of the rank that arrived last."""
        arrivals = (task[np.argmax(timeline.start[task])] for task in self.arrivals)
        last = np.fromiter(arrivals, np.int64, len(self.arrivals))
        rank = np.repeat(np.arange(len(self.ranks), dtype=np.int32), np.diff(self.first))
        row = np.concatenate([rank_tasks.tasks.row for rank_tasks in self.ranks])
        kind = [*(rank_tasks.tasks.kind for rank_tasks in self.ranks), np.full(len(last), TRANSFER, np.int8)]
        return replace(
            self.tasks,
            kind=np.concatenate(kind),
            rank=np.concatenate([rank, rank[last]]),
            row=np.concatenate([row, row[last]]),
        )

    def rank_timeline(self, position: int, timeline: Timeline) -> Timeline:
        """When the tasks of one rank start and end: a collective's from the arrival to the end of the transfer."""
        here = slice(self.first[position], self.first[position + 1])
        start, end = timeline.start[here], timeline.end[here].copy()
        arrival, transfer = self.ranks[position].arrival, self.transfer[position]
        matched = (arrival >= 0) & (transfer >= 0)
        end[arrival[matched]] = timeline.end[transfer[matched]]
        return Timeline(start, end)


def merge_ranks(ranks: Sequence[RankTasks], collectives: Sequence[Calls], transfer_us: Floats) -> JobTasks:
    """One task graph of all ranks.

    Of each collective its calls are given, and what it takes from the last arrival on.

    >>> from foretrace.simulation.engine import simulate
    >>> def rank(works):  # works so long, arrives, and goes on for 1 us when all are there
    ...     return RankTasks(TaskGraph.of([works, 0.0, 1.0], [0, 1, 0], [(0, 1), (1, 2)]), np.array([1]))
    >>> simulate(merge_ranks([rank(1.0), rank(3.0)], [[(0, 0), (1, 0)]], np.array([0.5])).tasks).span
    4.5
    """
    sizes = np.array([len(rank.tasks) for rank in ranks], np.int64)
    first = np.concatenate([[0], np.cumsum(sizes)])
    transfer = [np.full(len(rank.arrival), -1, np.int64) for rank in ranks]
    arrivals = []
    for number, calls in enumerate(collectives, int(first[-1])):
        tasks = []
        for position, which in calls:
            task = ranks[position].arrival[which]
            if task >= 0:
                tasks.append(first[position] + task)
            if ranks[position].stays[which]:
                transfer[position][which] = number
        arrivals.append(np.array(tasks, np.int64))
    return JobTasks(ranks, _merged_tasks(ranks, first, transfer, arrivals, transfer_us), first, arrivals, transfer)


def _merged_tasks(
    ranks: Sequence[RankTasks], first: Longs, transfer: list[Longs], arrivals: list[Longs], transfer_us: Floats
) -> TaskGraph:
    graphs = [rank.tasks for rank in ranks]
    tasks = int(first[-1])
    edges = np.concatenate([[0], np.cumsum([len(graph.before) for graph in graphs])])
    known, arriving = int(edges[-1]), np.array([len(some) for some in arrivals], np.int64)
    duration, lane = np.empty(tasks + len(transfer_us)), np.empty(tasks + len(transfer_us), np.int32)
    begins = np.empty(tasks + len(transfer_us) + 1, np.int64)
    before, lag = np.empty(known + int(arriving.sum()), np.int32), np.empty(known + int(arriving.sum()))
    release = np.zeros(tasks + len(transfer_us) if any(len(graph.release) for graph in graphs) else 0)
    lanes = 0
    for position, (rank, graph) in enumerate(zip(ranks, graphs)):
        here, there = slice(first[position], first[position + 1]), slice(edges[position], edges[position + 1])
        duration[here], lag[there] = graph.duration, graph.lag
        duration[here][rank.arrival[rank.stays]] = 0.0
        np.add(graph.lane, np.int32(lanes), out=lane[here])
        np.add(graph.first[:-1], edges[position], out=begins[here])
        np.add(graph.before, np.int32(first[position]), out=before[there])
        # Whatever waits for an arrival waits for the transfer.
        edge, which = rank.arrival_edges
        matched = transfer[position][which] >= 0
        before[there][edge[matched]] = transfer[position][which[matched]]
        if len(graph.release):
            release[here] = graph.release
        lanes += int(graph.lane.max(initial=-1)) + 1
    duration[tasks:] = transfer_us
    begins[tasks:] = known + np.concatenate([[0], np.cumsum(arriving)])
    before[known:], lag[known:] = np.concatenate(arrivals) if arrivals else [], 0.0
    lane[tasks:] = np.arange(lanes, lanes + len(transfer_us))
    rows = np.concatenate([first[:-1], np.arange(tasks, tasks + len(transfer_us))])
    return TaskGraph(duration, lane, begins, before, lag, release, rows)
