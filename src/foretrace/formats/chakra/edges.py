"""Dependencies of a measured step in Chakra's terms: nodes with durations, and edges that go forward in time.

A simulator runs the host nodes of a thread one after the other. So an op has its exclusive time only, annotations have
none, and the time between two outermost ops is a node of its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.graph import Graph
from foretrace.graph.tables import ANNOTATION, MODULE, SYNC, WAIT_EVENT, Floats

OP, CALL, KERNEL, GAP = range(4)
"""What a planned node is: a row of one of the three tables, or host time between ops."""

CLOCK_ERROR_US = 1.0
"""How far the clocks of host and device may differ."""

Items = NDArray[np.int64]


class PlannedNode(NamedTuple):
    """A node to write. Parent and deps are positions in the plan, all before the node's own."""

    what: int
    row: int
    parent: int
    deps: tuple[int, ...]
    lane: tuple[int, int]
    """0 and the thread for host nodes, 1 and the stream for device nodes."""
    us: float


def plan_nodes(graph: Graph) -> list[PlannedNode]:
    """The nodes of a graph in topological order.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("a", start_us=0, end_us=10), Op("b", start_us=2, end_us=5, parent=0)])
    >>> [(node.row, node.parent, node.deps, node.us) for node in plan_nodes(Graph(ops))]
    [(0, -1, (), 7.0), (1, 0, (0,), 3.0)]
    """
    return _Planner(graph).nodes()


class _Planner:
    """Items are the rows of the three tables one after the other: ops, calls, kernels."""

    def __init__(self, graph: Graph) -> None:
        ops, calls, kernels = graph.ops, graph.calls, graph.kernels
        self.calls, self.kernels = calls, kernels
        self.first_call, self.first_kernel = len(ops), len(ops) + len(calls)
        # ops without times run in their order and take no time
        untimed = np.isnan(ops.start)
        op_start, op_end = (np.where(untimed, np.arange(len(ops)), times) for times in (ops.start, ops.end))
        self.start = np.concatenate([op_start, calls.start, kernels.start])
        self.end = np.concatenate([op_end, calls.end, kernels.end])
        self.count = len(self.start)
        launch = np.where(kernels.call >= 0, kernels.call + self.first_call, -1)
        self.parent: Items = np.concatenate([ops.parent, calls.op, launch]).astype(np.int64)
        self.thread = np.concatenate([ops.thread, calls.thread])
        self.around, self.outermost = _levels(graph, self.parent[: self.first_kernel])
        self.us = self._own_time()
        self.gap = np.zeros(self.count)
        self.deps: list[set[int]] = [set() for _ in range(self.count)]
        waited = self._add_syncs()
        self.order = self._topological_order(waited)
        self._chain_threads(timed=not untimed.any())
        self._chain_streams()
        self._add_event_waits()

    def _own_time(self) -> Floats:
        """Exclusive time of each item."""
        whole: Floats = np.maximum(0.0, self.end - self.start)
        own: Floats = whole.copy()
        inner = np.flatnonzero(self.parent[: self.first_kernel] >= 0)
        np.subtract.at(own, self.parent[inner], whole[inner])
        own[: self.first_kernel][self.around] = 0.0
        own[own < 0] = 0.0
        return own

    def _add_syncs(self) -> dict[int, int]:
        """Let each sync depend on the last kernel that ended during it; returns these kernels by sync."""
        waited = {}
        by_end = np.argsort(self.kernels.end, kind="stable")
        ends = self.kernels.end[by_end]
        for call in np.flatnonzero(self.calls.kind == SYNC).tolist():
            at = int(np.searchsorted(ends, self.calls.end[call] + CLOCK_ERROR_US, side="right")) - 1
            if at >= 0 and ends[at] > self.calls.start[call]:
                item, kernel = self.first_call + call, self.first_kernel + int(by_end[at])
                waited[item] = kernel
                self.deps[item].add(kernel)
                self.us[item] = max(0.0, self.end[item] - self.end[kernel])
        return waited

    def _topological_order(self, waited: dict[int, int]) -> Items:
        """Items by start: a kernel after its launch and the previous one on its stream, a sync after its kernel."""
        key = self.start.copy()
        kernels = np.arange(self.first_kernel, self.count)
        launched = kernels[self.parent[kernels] >= 0]
        key[launched] = np.maximum(key[launched], key[self.parent[launched]])
        for stream in np.unique(self.kernels.stream):
            on_it = kernels[self.kernels.stream == stream]
            key[on_it] = np.maximum.accumulate(key[on_it])
        for sync, kernel in waited.items():
            key[sync] = max(key[sync], np.nextafter(key[kernel], np.inf))
        return np.lexsort((np.arange(self.count), key))

    def _chain_threads(self, timed: bool) -> None:
        host = self.order[self.order < self.first_kernel]
        outermost = host[self.outermost[host]]
        by_end = outermost[np.argsort(self.end[outermost], kind="stable")]
        before = np.searchsorted(self.end[by_end], self.start[outermost], side="right") - 1
        latest = dict(zip(outermost.tolist(), np.where(before >= 0, by_end[before], -1).tolist()))
        last_inside = self._last_inside(host)
        began = float(self.start[outermost].min()) if len(outermost) else 0.0
        for thread in np.unique(self.thread):
            for ahead, item in pairwise([-1, *host[self.thread[host] == thread].tolist()]):
                if ahead >= 0:
                    self.deps[item].add(ahead)
                if item in latest:
                    previous = latest[item]
                    if previous >= 0 and self.thread[previous] != thread:  # another thread ran in between
                        self.deps[item].add(last_inside[previous])
                    if timed:
                        self.gap[item] = self.start[item] - (self.end[previous] if previous >= 0 else began)

    def _last_inside(self, host: Items) -> dict[int, int]:
        """For each outermost item, the last item in it, which is where a simulator ends it."""
        root: dict[int, int] = {}
        last: dict[int, int] = {}
        for item in host.tolist():
            top = item if self.outermost[item] else root.get(int(self.parent[item]))
            if top is not None:
                root[item] = top
                last[top] = item
        return last

    def _chain_streams(self) -> None:
        device = self.order[self.order >= self.first_kernel]
        streams = self.kernels.stream[device - self.first_kernel]
        for stream in np.unique(streams):
            for ahead, item in pairwise(device[streams == stream].tolist()):
                self.deps[item].add(ahead)
        for item in device[self.parent[device] >= 0].tolist():
            self.deps[item].add(int(self.parent[item]))

    def _add_event_waits(self) -> None:
        """Let the next kernel launched after a wait for an event depend on the newest kernels of the other streams."""
        launched: dict[int, list[int]] = {}
        for row in np.flatnonzero(self.kernels.call >= 0).tolist():
            launched.setdefault(int(self.kernels.call[row]), []).append(row)
        newest: dict[int, int] = {}
        awaited: dict[int, dict[int, int]] = {}
        for call in np.argsort(self.calls.start, kind="stable").tolist():
            thread = int(self.calls.thread[call])
            if self.calls.kind[call] == WAIT_EVENT:
                awaited[thread] = dict(newest)
            for row in launched.get(call, ()):
                stream = int(self.kernels.stream[row])
                for other, ahead in awaited.pop(thread, {}).items():
                    if other != stream and self.kernels.end[ahead] <= self.kernels.start[row] + CLOCK_ERROR_US:
                        self.deps[self.first_kernel + row].add(self.first_kernel + ahead)
                newest[stream] = row

    def nodes(self) -> list[PlannedNode]:
        planned: list[PlannedNode] = []
        node_of: dict[int, int] = {}
        for item in self.order.tolist():
            what, row, lane = self._row_of(item)
            # clocks are not exact: an edge that would go back in time is left out
            deps = tuple(sorted(node_of[dep] for dep in self.deps[item] if dep in node_of))
            if self.gap[item] > 0:
                planned.append(PlannedNode(GAP, row, -1, deps, lane, float(self.gap[item])))
                deps = (len(planned) - 1,)
            node_of[item] = len(planned)
            parent = node_of.get(int(self.parent[item]), -1)
            planned.append(PlannedNode(what, row, parent, deps, lane, float(self.us[item])))
        return planned

    def _row_of(self, item: int) -> tuple[int, int, tuple[int, int]]:
        if item >= self.first_kernel:
            row = item - self.first_kernel
            return KERNEL, row, (1, int(self.kernels.stream[row]))
        thread = int(self.thread[item])
        return (OP, item, (0, thread)) if item < self.first_call else (CALL, item - self.first_call, (0, thread))


def _levels(graph: Graph, parent: Items) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which host items are annotations or modules around all calls, and which are the outermost in them."""
    marks = np.isin(graph.ops.kind, (ANNOTATION, MODULE)).tolist() + [False] * len(graph.calls)
    around: list[bool] = []
    outermost: list[bool] = []
    for mark, above in zip(marks, parent.tolist()):
        free = above < 0 or around[above]
        around.append(mark and free)
        outermost.append(free and not mark)
    return np.array(around, bool), np.array(outermost, bool)
