"""The tasks of a measured step, and their dependencies as a trace shows them: what the critical path is found on.

Lane order, launches, events, syncs, a full launch queue. Rows of a rank are numbered as in its tables: host segments
first, then kernels. Each function for a kind of dependency gives (before, after) pairs, one column each.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.collectives import CollectiveTimes
from foretrace.analysis.critical_path import LATENCY_US
from foretrace.analysis.host_time import Segments
from foretrace.graph import Constant, Graph
from foretrace.graph.calls import host_collective_calls
from foretrace.graph.operators import C10D_CALLS
from foretrace.graph.tables import (
    ANNOTATION,
    CALL,
    COLLECTIVE,
    STREAM_BITS,
    WAIT_EVENT,
    CallTable,
    Floats,
    Ints,
    KernelTable,
    Longs,
    Names,
    Small,
    below,
    distinct,
)
from foretrace.simulation.task_graph import KERNEL, SYNC, TRANSFER, TaskGraph, Timeline, previous_on_lane

Pairs = NDArray[np.int32]

CLOCKS_AGREE_US = 10.0
"""Host and devices have clocks of their own; what these put less than this apart may be at the same time."""


LAUNCHING = (*C10D_CALLS, "nccl:", "record_param_comms")
"""How the names of calls begin, and of what is around them, that launch a collective."""
LAUNCHES_AHEAD = 1024
"""Launches that CUDA takes before the first of them is done."""
WORK_WAIT = "c10d::wait"
"""The op that waits for a collective's work."""
SYNCS_OF_ONE_STREAM = ("cudaStreamSynchronize", "hipStreamSynchronize", "cudaMemcpyAsync", "hipMemcpyWithStream")


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


@dataclass(eq=False)
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
    start, end = np.concatenate([start, kernels.start]), np.concatenate([segments.end, kernels.end])
    waits.append(_waits_seen(graph, start, end, np.concatenate(waits), hosts) + hosts)
    return Tasks(
        start=start,
        end=end,
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
    # What starts beside its rank's kernel, before the transfer does, waited for no more than the arrival.
    held = edges(stands_for[tasks.edges[:, 0]], tasks.edges[:, 1])
    tasks.edges = np.concatenate([tasks.edges[arrivals[tasks.edges[:, 0]]], held, *arriving])
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


def edges(before: NDArray[Any], after: NDArray[Any]) -> Pairs:
    """Two columns as one array of (before, after) pairs.

    >>> edges(np.array([0, 1]), np.array([2, 2])).tolist()
    [[0, 2], [1, 2]]
    """
    return np.stack([before, after], axis=1, dtype=np.int32, casting="same_kind")


def lane_order(lane: NDArray[Any], start: Floats) -> Pairs:
    """A thread or a stream does one thing after the other.

    >>> lane_order(np.array([7, 20, 7]), np.array([0.0, 1.0, 2.0])).tolist()
    [[0, 2]]
    """
    previous = previous_on_lane(lane, start)
    return edges(previous[previous >= 0], np.flatnonzero(previous >= 0))


def handovers(segments: Segments) -> Pairs:
    """A thread that waited for another one goes on when that one stops."""
    found = [np.zeros((0, 2), np.int32)]
    for thread in distinct(segments.after_thread[segments.after_thread >= 0]):
        after = np.flatnonzero(segments.after_thread == thread)
        theirs = np.flatnonzero(segments.thread == thread)
        last = np.searchsorted(segments.end[theirs], segments.start[after], "right") - 1
        found.append(edges(np.append(theirs, -1)[last], after)[last >= 0])
    return np.concatenate(found)


def launches(graph: Graph, segments: Segments) -> Pairs:
    """A kernel starts after the call that launched it: (segment, kernel)."""
    segment = np.full(len(graph.calls) + 1, -1)
    for_call = segments.call >= 0
    # A blocking copy has two segments; the first is its launch.
    segment[segments.call[for_call][::-1]] = np.flatnonzero(for_call)[::-1]
    launching = distinct(graph.kernels.call[graph.kernels.call >= 0])
    inside_another = launching[segment[launching] < 0]
    segment[inside_another] = _segments_at(segments, graph.calls.rows(inside_another))
    launched_by = segment[graph.kernels.call]
    known = (graph.kernels.call >= 0) & (launched_by >= 0)
    return edges(launched_by[known], np.flatnonzero(known))


def _segments_at(segments: Segments, calls: CallTable) -> Longs:
    """The segment in which each call began; -1 for none."""
    found = np.full(len(calls), -1)
    for thread in distinct(calls.thread):
        ours, theirs = np.flatnonzero(segments.thread == thread), np.flatnonzero(calls.thread == thread)
        at = np.searchsorted(segments.start[ours], calls.start[theirs], "right")
        found[theirs] = np.append(-1, ours)[at]
    return found


class Streams:
    """The kernels of each stream in order, and when each was launched."""

    def __init__(self, graph: Graph) -> None:
        kernels = graph.kernels
        self.kernels: KernelTable = kernels
        called = np.append(graph.calls.start, -np.inf)[kernels.call]
        self.rows: list[Longs] = [np.flatnonzero(kernels.stream == stream) for stream in distinct(kernels.stream)]
        self.rows = [rows[np.argsort(kernels.start[rows], kind="stable")] for rows in self.rows]
        self.launched: list[Floats] = [np.maximum.accumulate(called[rows]) for rows in self.rows]

    def last_before(self, stream: int, time: Floats, over: Floats | None = None) -> Longs:
        """On a stream, the last kernel launched before each time, of those that start before it is ``over``; -1 for
        none."""
        at = np.searchsorted(self.launched[stream], time, "left") - 1
        if over is not None:
            at = np.minimum(at, np.searchsorted(self.kernels.start[self.rows[stream]], over, "left") - 1)
        return np.where(at >= 0, self.rows[stream][at], -1)


def event_waits(graph: Graph, streams: Streams) -> Pairs:
    """A stream that was told to wait runs its next kernel after the others' last: (kernel, kernel).

    A trace names neither the stream that waits nor the event. The stream is that of the thread's next launch: the one
    whose work is prepared. The event may be of each other stream, and those that it was not of are left out by their
    times.
    """
    waits = np.flatnonzero(graph.calls.kind == WAIT_EVENT)
    waits, held = _held_kernels(graph, waits)
    time = graph.calls.start[waits]
    stream = graph.kernels.stream[held]
    found = [np.zeros((0, 2), np.int32)]
    for one, rows in enumerate(streams.rows):
        others = np.flatnonzero(stream != graph.kernels.stream[rows[0]])
        found.append(edges(streams.last_before(one, time[others]), held[others]))
    waits_for, _ = np.unique(np.concatenate(found), axis=0, return_index=True)  # else it loads masked arrays
    waits_for = waits_for[(waits_for >= 0).all(axis=1)]
    return waits_for[graph.kernels.end[waits_for[:, 0]] <= graph.kernels.start[waits_for[:, 1]]]


def _waits_seen(graph: Graph, start: Floats, end: Floats, waits: Pairs, hosts: int) -> Pairs:
    """Kernels that start as one of another stream ends, long after all that they are known to wait for: (kernel,
    kernel).

    They wait for an event that the trace does not show, or for room on the device.
    """
    kernels, released = graph.kernels, np.full(len(start), -np.inf)
    np.maximum.at(released, waits[:, 1], np.minimum(end[waits[:, 0]], start[waits[:, 1]]))
    pause = kernels.start - released[hosts:]
    late = np.flatnonzero((pause > LATENCY_US) & np.isfinite(pause))
    order = np.argsort(kernels.end, kind="stable")
    launched, device = np.append(graph.calls.start, -np.inf)[kernels.call], kernels.stream >> STREAM_BITS
    found = [np.zeros((0, 2), np.int32)]
    for one in distinct(device[late]):
        ours, held = order[device[order] == one], late[device[late] == one]
        last = ours[np.searchsorted(kernels.end[ours], kernels.start[held], "right") - 1]
        since = kernels.start[held] - kernels.end[last]
        lets_go = (since >= 0) & (since <= CLOCKS_AGREE_US) & (launched[last] <= launched[held])
        found.append(edges(last, held)[lets_go])
    return np.concatenate(found)


def _held_kernels(graph: Graph, waits: Longs) -> tuple[Longs, Longs]:
    """The waits that hold a kernel, and the kernel that each holds.

    A collective's call tells its own stream to wait; any other call that of the work which follows: on its thread, or
    where this launches no more, on the one that it hands over to.
    """
    kernels, calls = graph.kernels, graph.calls
    collective = _inside_collective_calls(graph)[calls.op[waits]] | (calls.op[waits] < 0)
    launched = np.flatnonzero(kernels.call >= 0)
    launched = launched[np.argsort(calls.start[kernels.call[launched]], kind="stable")]
    computing = launched[kernels.kind[launched] != COLLECTIVE]

    def next_of(some: Longs, rows: Longs) -> Longs:
        at = np.searchsorted(calls.start[kernels.call[some]], calls.start[waits[rows]])
        return np.asarray(np.append(some, -1)[at])

    held = np.full(len(waits), -1)
    for thread in distinct(calls.thread[waits]):
        for kind, some in ((True, launched), (False, computing)):
            ours = np.flatnonzero((calls.thread[waits] == thread) & (collective == kind))
            held[ours] = next_of(some[calls.thread[kernels.call[some]] == thread], ours)
    last = np.flatnonzero(held < 0)
    held[last] = next_of(computing, last)
    return waits[held >= 0], held[held >= 0]


def _inside_collective_calls(graph: Graph) -> NDArray[np.bool_]:
    """Whether each op is a collective's call or inside one; one entry more, for "no op"."""
    starts = graph.ops.names.matching(lambda name: name.startswith(LAUNCHING) and "wait" not in name)
    if not starts.any():
        return np.zeros(len(graph.ops) + 1, bool)
    return np.append(below(starts[graph.ops.name], graph.ops.parent), False)


def sync_waits(graph: Graph, segments: Segments, streams: Streams) -> Pairs:
    """A sync returns after the last kernel launched before it on each stream it waited for: (kernel, segment).

    A sync of one stream is for the one that its thread last gave work to. Which streams others waited for is seen from
    the times: a kernel that was still running when the call returned was not.
    """
    polls = np.flatnonzero(segments.polled >= 0)
    syncs = np.flatnonzero((segments.kind == SYNC) & (segments.polled < 0))
    # The copy that a blocking copy waits for was launched by the call itself, just before.
    time = np.nextafter(segments.start[syncs], np.inf)
    named = _stream_named(graph, segments, syncs)
    found = [edges(segments.polled[polls], polls)]
    for stream, rows in enumerate(streams.rows):
        # By clocks that differ, a kernel may start as the call that waited for it returns.
        last = streams.last_before(stream, time, segments.end[syncs])
        waited = (last >= 0) & (streams.kernels.end[last] <= segments.end[syncs] + CLOCKS_AGREE_US)
        waited &= (named < 0) | (named == graph.kernels.stream[rows[0]])
        found.append(edges(last, syncs)[waited])
    return np.concatenate(found)


def queue_waits(graph: Graph, segments: Segments) -> Pairs:
    """A launch returns when the device has room: when the kernel so many launches before is done: (kernel, segment)."""
    kernels, calls = graph.kernels, graph.calls
    launched = np.flatnonzero(kernels.call >= 0)
    if len(launched) <= LAUNCHES_AHEAD:
        return np.zeros((0, 2), np.int32)
    launched = launched[np.argsort(calls.start[kernels.call[launched]], kind="stable")]
    segment = np.full(len(calls), -1)
    ours = np.flatnonzero(segments.call >= 0)
    segment[segments.call[ours]] = ours
    before, after = launched[:-LAUNCHES_AHEAD], segment[kernels.call[launched[LAUNCHES_AHEAD:]]]
    possible = (after >= 0) & (kernels.end[before] <= segments.end[after] + CLOCKS_AGREE_US)
    return edges(before[possible], after[possible])


def _stream_named(graph: Graph, segments: Segments, syncs: Longs) -> Longs:
    """The stream that each sync is for; -1 where it is for all of them, or unknown."""
    calls, kernels = graph.calls, graph.kernels
    called = segments.call[syncs]
    of_one = calls.names.matching(lambda name: name in SYNCS_OF_ONE_STREAM)[calls.name[called]]
    named = np.full(len(syncs), -1)
    launched = np.flatnonzero(kernels.call >= 0)
    launched = launched[np.argsort(calls.start[kernels.call[launched]], kind="stable")]
    for thread in distinct(segments.thread[syncs[of_one]]):
        ours = np.flatnonzero(of_one & (segments.thread[syncs] == thread))
        theirs = launched[calls.thread[kernels.call[launched]] == thread]
        last = np.searchsorted(calls.start[kernels.call[theirs]], segments.end[syncs[ours]]) - 1
        named[ours] = np.where(last >= 0, np.append(kernels.stream[theirs], -1)[last], -1)
    return named


def with_host_collectives_as_kernels(graph: Graph) -> Graph:
    """The graph with a kernel for each collective that a thread of the host runs (gloo), owned by the call that issued
    it.

    Such a collective becomes device work on a lane of its own: it starts when a call issues it, and only what needs its
    result waits for it.
    """
    ops = graph.ops
    theirs = [n for n, c in enumerate(graph.collectives) if c.kernel < 0 <= c.op and np.isfinite(ops.start[c.op])]
    theirs = [n for n in theirs if not ops.names[ops.name[graph.collectives[n].op]].startswith(C10D_CALLS)]
    if not theirs:
        return graph
    rows = np.array([graph.collectives[n].op for n in theirs])
    calls = host_collective_calls(graph, np.flatnonzero(ops.kind == CALL))
    names = Names(list(graph.kernels.names.items))
    codes = [names.code(ops.names[ops.name[row]]) for row in rows.tolist()]
    nothing = np.zeros(len(rows), np.int64)
    added = KernelTable(
        name=np.array(codes, np.int32),
        start=ops.start[rows],
        end=ops.end[rows],
        stream=(ops.thread[rows] + graph.kernels.stream.max(initial=0) + 1).astype(np.int32),
        kind=np.full(len(rows), COLLECTIVE, np.int8),
        call=np.full(len(rows), -1, np.int32),
        op=np.array([calls.get(n, -1) for n in theirs], np.int32),
        nbytes=nothing,
        grid=nothing,
        block=nothing,
        names=names,
    )
    collectives = list(graph.collectives)
    for place, number in enumerate(theirs, len(graph.kernels)):
        collectives[number] = replace(collectives[number], kernel=place)
    table = replace(ops, kind=ops.kind.copy())
    table.kind[rows] = ANNOTATION  # the simulation runs them, not their threads
    return replace(graph, ops=table, kernels=_concat(graph.kernels, added), collectives=collectives)


def without_host_collective_kernels(graph: Graph) -> Graph:
    """The graph that `with_host_collectives_as_kernels` was given, its collectives at the times of their kernels."""
    ours = host_collective_kernels(graph)
    if not len(ours):
        return graph
    rows = {c.kernel: c.op for c in graph.collectives}
    ops = replace(graph.ops, start=graph.ops.start.copy(), end=graph.ops.end.copy())
    row = np.array([rows[kernel] for kernel in ours.tolist()])
    ops.start[row], ops.end[row] = graph.kernels.start[ours], graph.kernels.end[ours]
    stays = np.ones(len(graph.kernels), bool)
    stays[ours] = False
    collectives = [c if c.kernel < 0 or stays[c.kernel] else replace(c, kernel=-1) for c in graph.collectives]
    return replace(graph, ops=ops, kernels=graph.kernels.rows(stays), collectives=collectives)


def host_collective_kernels(graph: Graph) -> Longs:
    """Kernels that are collectives of host threads: they have the names of what runs them, and come last."""
    kernels, ops = graph.kernels, graph.ops
    performing = np.full(len(kernels), -1)
    for one in graph.collectives:
        if one.kernel >= 0:
            performing[one.kernel] = one.op
    ours = np.flatnonzero((kernels.kind == COLLECTIVE) & (kernels.call < 0) & (kernels.op >= 0) & (performing >= 0))
    named = [kernels.names[kernels.name[row]] == ops.names[ops.name[performing[row]]] for row in ours.tolist()]
    return np.asarray(ours[np.array(named, bool)])


def _concat(one: KernelTable, other: KernelTable) -> KernelTable:
    columns = [f.name for f in fields(KernelTable) if f.name != "names"]
    return KernelTable(
        **{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in columns}, names=other.names
    )


def host_collective_waits(graph: Graph, segments: Segments) -> tuple[Pairs, Pairs]:
    """What issues the host's collectives, (segment, kernel), and what waits for them, (kernel, segment)."""
    kernels, ours = graph.kernels, host_collective_kernels(graph)
    if not len(ours):
        none = np.zeros((0, 2), np.int32)
        return none, none
    first, last = np.full((2, len(graph.ops)), -1)
    order = np.flatnonzero(segments.op >= 0)
    last[segments.op[order]] = order
    first[segments.op[order[::-1]]] = order[::-1]
    issuing = last[kernels.op[ours]]
    waiting = _waiting(graph, kernels.op[ours].tolist(), first)
    issued = edges(issuing[issuing >= 0], ours[issuing >= 0])
    return issued, edges(ours[waiting >= 0], waiting[waiting >= 0])


def _waiting(graph: Graph, issuing: list[int], first: Longs) -> Longs:
    """For collectives that some calls issue, the first segment that waits for each; -1 for none.

    That is the first one after a wait for its work, or else of the first call that touches its data.
    """
    issued: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(issuing):
        issued[row].append(number)
    waiting = np.full(len(issuing), -1, np.int64)
    known_by: dict[object, set[int]] = defaultdict(set)
    due: set[int] = set()
    for row in np.flatnonzero(graph.ops.kind == CALL).tolist():
        op = graph.ops[row]
        if op.name == WORK_WAIT:
            due.update(*(known_by[value] for value in op.args if isinstance(value, Constant)))
        elif not op.name.startswith(C10D_CALLS):
            due.update(*(known_by[tensor.storage] for tensor in (*op.tensors, *op.produced)))
        if due and first[row] >= 0:
            waiting[[number for number in due if waiting[number] < 0]] = first[row]
            due.clear()
        if row in issued:
            works = {value for value in op.outputs if isinstance(value, Constant) and value.kind == "work"}
            for key in works.union(t.storage for t in (*op.tensors, *op.produced) if t.storage >= 0):
                known_by[key] = set(issued[row])
    return waiting
