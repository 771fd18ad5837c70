"""A job's measured times as a program and its timeline: what the critical path is walked on."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from foretrace.forecast.collectives import Meetings
from foretrace.forecast.dependencies import (
    CLOCKS_AGREE_US,
    Pairs,
    Streams,
    event_waits,
    handovers,
    lane_order,
    launches,
    pairs,
    queue_waits,
    sync_waits,
)
from foretrace.forecast.host import Segments
from foretrace.forecast.host_exchange import exchange_edges
from foretrace.graph import Graph
from foretrace.graph.tables import Floats, Ints, Longs, Small
from foretrace.simulation.program import Program, Timeline

HOST, KERNEL, TRANSFER = range(3)
"""What a task is: a segment of host time, a kernel, the transfer of a collective."""


@dataclass
class Measured:
    """Tasks of all ranks in time order, and what each of them stands for.

    A collective is one task of all its ranks, the transfer. The kernel that a rank has for it is there as its
    arrival: a task that takes no time, since up to the transfer it only waits.
    """

    program: Program
    timeline: Timeline
    kind: Small
    graph: Ints
    """Position of the graph in the job; for a transfer, of the rank that arrived last."""
    row: Ints
    """Row in the graph's segments or kernels; a transfer has that of the last rank's kernel."""


def measured(graphs: list[Graph], segments: list[Segments], meetings: list[Meetings]) -> Measured:
    """The measured times of all ranks as one program."""
    ranks, first_kernel = [], []
    first = first_lane = 0
    for position, (graph, cut) in enumerate(zip(graphs, segments)):
        rank = rank_tasks(position, graph, cut)
        first_kernel.append(first + len(cut))
        rank.edges += first
        rank.lane += first_lane
        first, first_lane = first + len(rank.start), int(rank.lane.max(initial=first_lane - 1)) + 1
        ranks.append(rank)
    return in_time_order(_with_transfers(Tasks.joined(ranks), meetings, np.array(first_kernel)))


@dataclass
class Tasks:
    """Tasks in any order, and (before, after) pairs of those that wait for each other."""

    start: Floats
    end: Floats
    lane: Ints
    kind: Small
    graph: Ints
    row: Ints
    edges: Pairs

    @classmethod
    def joined(cls, parts: list[Tasks]) -> Tasks:
        """One after the other, as they are."""
        return cls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)))


def rank_tasks(position: int, graph: Graph, segments: Segments) -> Tasks:
    """The tasks of one rank, host segments first, and every rule between them."""
    kernels, hosts = graph.kernels, len(segments)
    streams = Streams(graph)
    issued, waited = exchange_edges(graph, segments)
    synced = np.concatenate([sync_waits(graph, segments, streams), waited, queue_waits(graph, segments)])
    start = segments.start.copy()
    # A sync is work only from the moment that what it waited for was over.
    np.maximum.at(start, synced[:, 1], np.minimum(kernels.end[synced[:, 0]], segments.end[synced[:, 1]]))
    edges = [
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
        kind=np.repeat(np.array([HOST, KERNEL], np.int8), [hosts, len(kernels)]),
        graph=np.full(hosts + len(kernels), position, np.int32),
        row=np.concatenate([np.arange(hosts, dtype=np.int32), np.arange(len(kernels), dtype=np.int32)]),
        edges=np.concatenate(edges),
    )


def _transfers(tasks: Tasks, group: Meetings, first_kernel: Longs) -> tuple[Tasks, Longs]:
    """The transfers of a group as tasks, and for each the tasks that are its arrivals.

    A collective in which some rank was done before the last one came is none that holds everybody (a broadcast's
    root): its kernels stay as they are. So do those of a rank whose partners left no trace.
    """
    holds = (group.kernel >= 0).all(axis=1) & (len(group.members) > 1)
    holds &= group.end.min(axis=1) >= group.last_start - CLOCKS_AGREE_US
    arrival = (group.kernel + first_kernel[group.members])[holds]
    last = arrival[np.arange(len(arrival)), group.last_member[holds]]
    kind, edges = np.full(len(last), TRANSFER, np.int8), np.zeros((0, 2), np.int32)
    start, end = group.last_start[holds], group.last_end[holds]
    return Tasks(start, end, tasks.lane[last], kind, tasks.graph[last], tasks.row[last], edges), arrival


def _with_transfers(tasks: Tasks, groups: list[Meetings], first_kernel: Longs) -> Tasks:
    """Each collective as arrivals and one transfer, which whoever waited for a rank's kernel now waits for."""
    if not groups:
        return tasks
    stands_for = np.arange(len(tasks.start))
    found, edges, count = [], [], len(tasks.start)
    for group in groups:
        transfers, arrival = _transfers(tasks, group, first_kernel)
        number = count + np.arange(len(arrival))
        stands_for[arrival] = number[:, None]
        edges.append(pairs(arrival.ravel(), np.repeat(number, arrival.shape[1])))
        found.append(transfers)
        count += len(arrival)
    arrivals = stands_for != np.arange(len(tasks.start))
    tasks.end[arrivals] = tasks.start[arrivals]
    tasks.edges = np.concatenate([pairs(stands_for[tasks.edges[:, 0]], tasks.edges[:, 1]), *edges])
    return Tasks.joined([tasks, *found])


def in_time_order(tasks: Tasks) -> Measured:
    """The tasks as a program, in the order they started."""
    order = np.lexsort((tasks.end, tasks.start))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    edges = place[tasks.edges]
    start, end, graph = tasks.start[order], tasks.end[order], tasks.graph[order]
    # A stamp that contradicts an edge (a kernel that starts before its launch) is the clock's doing: no edge.
    edges = edges[edges[:, 0] < edges[:, 1]]
    edges = np.concatenate([edges, _after_whatever_ended_last(start, end, graph, edges)])
    return Measured(
        program=Program.of(end - start, tasks.lane[order], edges),
        timeline=Timeline(start, end),
        kind=tasks.kind[order],
        graph=graph,
        row=tasks.row[order],
    )


def _after_whatever_ended_last(start: Floats, end: Floats, graph: Ints, edges: Pairs) -> Pairs:
    """Edges for tasks that no rule holds back: on their rank, the one that ended last before they began.

    These are first tasks of a lane. What made them start when they did is not in the trace; the time between is a gap.
    """
    free = np.ones(len(start), bool)
    free[edges[:, 1]] = False
    found = []
    for task in np.flatnonzero(free).tolist():
        earlier = np.flatnonzero((graph[:task] == graph[task]) & (end[:task] <= start[task]))
        if len(earlier):
            found.append((earlier[np.argmax(end[earlier])], task))
    return np.array(found, np.int32).reshape(-1, 2)
