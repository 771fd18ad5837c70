"""Measured times as a task graph and its timeline: what the critical path is walked on, and what a simulation starts
from."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from foretrace.analysis.collectives import CollectiveTimes
from foretrace.analysis.dependencies import (
    CLOCKS_AGREE_US,
    Pairs,
    Streams,
    edges,
    event_waits,
    handovers,
    host_collective_waits,
    lane_order,
    launches,
    queue_waits,
    sync_waits,
)
from foretrace.analysis.host_time import Segments
from foretrace.graph import Graph
from foretrace.graph.tables import Floats, Ints, Longs, Small
from foretrace.simulation.task_graph import KERNEL, TRANSFER, TaskGraph, Timeline

MeasuredTasks = tuple[TaskGraph, Timeline]
"""Tasks of all ranks in time order, and when they ran.

A collective is one task of all its ranks, the transfer. The kernel that a rank has for it is its arrival: a task that
takes no time, since up to the transfer it only waits.
"""


def measured_tasks(graphs: list[Graph], segments: list[Segments], collectives: list[CollectiveTimes]) -> MeasuredTasks:
    """The measured times of all ranks as one task graph."""
    ranks, first_kernel = [], []
    first = first_lane = 0
    for position, (graph, cut) in enumerate(zip(graphs, segments)):
        rank = rank_tasks(position, graph, cut)
        first_kernel.append(first + len(cut))
        rank.edges += first
        rank.lane += first_lane
        first, first_lane = first + len(rank.start), int(rank.lane.max(initial=first_lane - 1)) + 1
        ranks.append(rank)
    return in_time_order(_with_transfers(Tasks.concat(ranks), collectives, np.array(first_kernel)))


@dataclass
class Tasks:
    """Measured tasks in any order, and (before, after) pairs of those that wait for each other."""

    start: Floats
    end: Floats
    lane: Ints
    kind: Small
    rank: Ints
    """Position of the rank's graph in the job."""
    row: Ints
    """Row in the rank's segments or kernels."""
    edges: Pairs

    @classmethod
    def concat(cls, parts: list[Tasks]) -> Tasks:
        """One after the other, as they are."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


def rank_tasks(position: int, graph: Graph, segments: Segments) -> Tasks:
    """The tasks of one rank, host segments first, and every rule between them."""
    kernels, hosts = graph.kernels, len(segments)
    streams = Streams(graph)
    issued, waited = host_collective_waits(graph, segments)
    synced = np.concatenate([sync_waits(graph, segments, streams), waited, queue_waits(graph, segments)])
    start = segments.start.copy()
    # A sync is work only from the moment that what it waited for was over.
    np.maximum.at(start, synced[:, 1], np.minimum(kernels.end[synced[:, 0]], segments.end[synced[:, 1]]))
    waits = [
        lane_order(segments.thread, segments.start),
        handovers(segments),
        launches(graph, segments) + np.array([0, hosts], np.int32),
        issued + np.array([0, hosts], np.int32),
        lane_order(kernels.stream, kernels.start) + hosts,
        event_waits(graph, streams) + hosts,
        synced + np.array([hosts, 0], np.int32),
    ]
    threads, thread = np.unique(segments.thread, return_inverse=True)
    stream = np.unique(kernels.stream, return_inverse=True)[1] + len(threads)
    return Tasks(
        start=np.concatenate([start, kernels.start]),
        end=np.concatenate([segments.end, kernels.end]),
        lane=np.concatenate([thread, stream]).astype(np.int32),
        kind=np.concatenate([segments.kind, np.full(len(kernels), KERNEL, np.int8)]),
        rank=np.full(hosts + len(kernels), position, np.int32),
        row=np.concatenate([np.arange(hosts, dtype=np.int32), np.arange(len(kernels), dtype=np.int32)]),
        edges=np.concatenate(waits),
    )


def _transfers(tasks: Tasks, group: CollectiveTimes, first_kernel: Longs) -> tuple[Tasks, Longs]:
    """The transfers of a group as tasks, and for each the tasks that are its arrivals.

    A collective in which some rank was done before the last one came does not hold all of them (a broadcast's
    root): its kernels stay as they are. So do those of a rank whose partners left no trace.
    """
    holds = (group.kernel >= 0).all(axis=1) & (len(group.members) > 1)
    holds &= group.end.min(axis=1) >= group.last_start - CLOCKS_AGREE_US
    arrival = (group.kernel + first_kernel[group.members])[holds]
    last = arrival[np.arange(len(arrival)), group.last_member[holds]]
    kind, none = np.full(len(last), TRANSFER, np.int8), np.zeros((0, 2), np.int32)
    start, end = group.last_start[holds], group.last_end[holds]
    return Tasks(start, end, tasks.lane[last], kind, tasks.rank[last], tasks.row[last], none), arrival


def _with_transfers(tasks: Tasks, groups: list[CollectiveTimes], first_kernel: Longs) -> Tasks:
    """Each collective as arrivals and one transfer, which whatever waited for a rank's kernel now waits for."""
    if not groups:
        return tasks
    stands_for = np.arange(len(tasks.start))
    found, arriving, count = [], [], len(tasks.start)
    for group in groups:
        transfers, arrival = _transfers(tasks, group, first_kernel)
        number = count + np.arange(len(arrival))
        stands_for[arrival] = number[:, None]
        arriving.append(edges(arrival.ravel(), np.repeat(number, arrival.shape[1])))
        found.append(transfers)
        count += len(arrival)
    arrivals = stands_for != np.arange(len(tasks.start))
    tasks.end[arrivals] = tasks.start[arrivals]
    tasks.edges = np.concatenate([edges(stands_for[tasks.edges[:, 0]], tasks.edges[:, 1]), *arriving])
    return Tasks.concat([tasks, *found])


def in_time_order(tasks: Tasks) -> MeasuredTasks:
    """The tasks as a task graph, in the order they started."""
    order = np.lexsort((tasks.end, tasks.start))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    waits = place[tasks.edges]
    start, end, rank = tasks.start[order], tasks.end[order], tasks.rank[order]
    # A time that contradicts an edge (a kernel that starts before its launch) comes from clocks that disagree: no edge.
    waits = waits[waits[:, 0] < waits[:, 1]]
    waits = np.concatenate([waits, _after_the_last_end(start, end, rank, waits)])
    kind, row = tasks.kind[order], tasks.row[order]
    return TaskGraph.of(end - start, tasks.lane[order], waits, kind=kind, rank=rank, row=row), Timeline(start, end)


def _after_the_last_end(start: Floats, end: Floats, rank: Ints, waits: Pairs) -> Pairs:
    """Edges for tasks that no rule holds back: on their rank, the one that ended last before they began.

    These are first tasks of a lane. What made them start when they did is not in the trace; the time between is a gap.
    """
    free = np.ones(len(start), bool)
    free[waits[:, 1]] = False
    found = []
    for task in np.flatnonzero(free).tolist():
        earlier = np.flatnonzero((rank[:task] == rank[task]) & (end[:task] <= start[task]))
        if len(earlier):
            found.append((earlier[np.argmax(end[earlier])], task))
    return np.array(found, np.int32).reshape(-1, 2)
