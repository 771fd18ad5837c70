"""The critical path of a step: what it goes through, on which rank, for how long, and which ops hold it up most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from foretrace.analysis.breakdown import labels_of
from foretrace.analysis.host_time import KINDS, Segments
from foretrace.analysis.report import LATENCY, HotOp, PathRow
from foretrace.graph import PHASES, Graph
from foretrace.graph.tables import CALL, COLLECTIVE, COPY, SET, Floats, Ints, Longs, Names, launched_before
from foretrace.simulation.critical_path import CriticalPath
from foretrace.simulation.task_graph import SYNC, T4, TRANSFER, TaskGraph, Timeline

LATENCY_US = 20.0
"""A kernel starts this soon after what it waited for is over; what takes longer, the trace does not explain."""

LATE_START, UNEXPLAINED = "late start", "unexplained"
EARLIER = "launched before"
"""A kernel of the step before, or from before the trace began."""


MAX_HOT_OPS = 10
BOUND_BY = ("host", "device", "sync", "exchange")
"""What most of an op's time on the critical path may be."""


@dataclass(eq=False)
class PathSummary:
    """Time on the critical path by kind of task, op and rank, from the first task of the job to the last."""

    ms: float = 0.0
    rows: list[PathRow] = field(default_factory=list)
    """Largest first."""
    by_rank: dict[int, float] = field(default_factory=dict)
    """Milliseconds of the path on each rank that it touches."""


def summarize_path(
    path: CriticalPath, tasks: TaskGraph, timeline: Timeline, graphs: list[Graph], segments: list[Segments]
) -> PathSummary:
    """Add up what the critical path went through.

    A path that begins later than the job does began on a rank that started late: that time is its first part.
    """
    if not len(path.task):
        return PathSummary()
    task, names = path.task, Names([""])
    what, name = np.zeros(len(task), np.int64), np.zeros(len(task), np.int64)
    for position, (graph, cut) in enumerate(zip(graphs, segments)):
        here = tasks.rank[task] == position
        what[here], name[here] = _labels(tasks.kind[task[here]], tasks.row[task[here]], graph, cut, names)
    rank = np.array([graph.rank for graph in graphs])[tasks.rank[task]]
    of_all = tasks.kind[task] == TRANSFER
    legs = np.stack([what, name, np.where(of_all, -1, rank)], axis=1)

    has_gap = path.gap > 0
    gap = path.gap[has_gap]
    gap_kind = np.where(gap > LATENCY_US, names.code(UNEXPLAINED), names.code(LATENCY))
    gaps = np.stack([gap_kind, np.zeros_like(gap_kind), rank[has_gap]], axis=1)

    first = int(np.argmin(timeline.start))
    first_rank = graphs[tasks.rank[first]].rank  # the job runs on it while the path has not begun
    lead = np.array([[*_lead(int(rank[0]), first_rank, names), first_rank]])
    lead_us = path.start[0] - timeline.start[first]
    return _summed(np.concatenate([legs, gaps, lead]), np.concatenate([path.end - path.start, gap, [lead_us]]), names)


def _lead(rank: int, first_rank: int, names: Names) -> tuple[int, int]:
    """What the time is from the first thing the job did to where the path begins."""
    if rank == first_rank:
        return names.code(UNEXPLAINED), names.code("")
    return names.code(LATE_START), names.code(f"rank {rank} began after rank {first_rank}")


def _labels(kind: Any, row: Longs, graph: Graph, cut: Segments, names: Names) -> tuple[Longs, Longs]:
    """Codes of what each task is and of its name."""
    host = kind <= SYNC
    what, name = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    what[host], name[host] = _host_labels(row[host], graph, cut, names)
    what[~host], name[~host] = _device_labels(row[~host], graph, names)
    what[kind == TRANSFER] = names.code("transfer")
    return what, name


def _host_labels(row: Longs, graph: Graph, cut: Segments, names: Names) -> tuple[Longs, Longs]:
    kinds = np.array([names.code(kind) for kind in KINDS])
    op_names = np.array([names.code(name) for name in graph.ops.names.items] + [names.code("")])
    what, name = kinds[cut.kind[row]], op_names[np.append(graph.ops.name, -1)[cut.op[row]]]
    for place in np.flatnonzero(cut.cause[row] >= 0).tolist():
        what[place], name[place] = (names.code(word) for word in cut.causes.items[cut.cause[row[place]]])
    return what, name


def _device_labels(row: Longs, graph: Graph, names: Names) -> tuple[Longs, Longs]:
    kinds = np.full(4, names.code("kernel"))
    kinds[[COPY, SET, COLLECTIVE]] = names.code("copy"), names.code("memset"), names.code("collective")
    kernel_names = np.array([names.code(name) for name in graph.kernels.names.items] + [names.code("")])
    before = launched_before(graph.kernels, graph.kernels.rows(row))
    what = np.where(before, names.code(EARLIER), kinds[graph.kernels.kind[row]])
    return what, kernel_names[graph.kernels.name[row]]


def _summed(columns: Longs, us: Floats, names: Names) -> PathSummary:
    taken = us > 0
    ranks = int(columns[:, 2].max()) + 2
    key = (columns[:, 0] * len(names) + columns[:, 1]) * ranks + columns[:, 2] + 1
    keys, which = np.unique(key[taken], return_inverse=True)
    sums = np.bincount(which, us[taken], len(keys)) / 1e3
    total = float(us.sum()) / 1e3
    rows = []
    by_rank: dict[int, float] = defaultdict(float)
    for code, ms in sorted(zip(keys.tolist(), sums.tolist()), key=lambda part: -part[1]):
        (what, name), rank = divmod(code // ranks, len(names)), code % ranks - 1
        rows.append(PathRow(names[what], names[name], None if rank < 0 else rank, ms, ms / total))
        if rank >= 0:
            by_rank[rank] += ms
    return PathSummary(total, rows, dict(sorted(by_rank.items())))


def hot_ops(
    path: CriticalPath, tasks: TaskGraph, timeline: Timeline, graphs: list[Graph], segments: list[Segments]
) -> list[HotOp]:
    """Ops of one name in one phase that hold the critical path up longest, the latency before each included; a longer
    pause that nothing explains is no op's.

    Calls, launches, host and device time are means over the ranks.
    """
    us = path.end - path.start + np.where(path.gap > LATENCY_US, 0.0, path.gap)
    ranks = [
        _LabelledRank(graph, cut, *labels_of(graph), launchers(graph, cut)) for graph, cut in zip(graphs, segments)
    ]
    spent: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0] * len(BOUND_BY))
    which, rows = tasks.rank[path.task], tasks.row[path.task]
    on_host = tasks.kind[path.task] <= SYNC
    for number, rank in enumerate(ranks):
        for host in (True, False):
            here = (which == number) & (on_host == host)
            for name, phase, how, time in rank.held(rows[here], us[here].tolist(), host):
                spent[name, phase][how] += time
    largest = sorted(spent, key=lambda key: -sum(spent[key]))[:MAX_HOT_OPS]
    total = timeline.span or 1.0  # including the time by which ranks began apart, as in the path
    found = []
    for name, phase in largest:
        times = spent[name, phase]
        ms, bound_by = sum(times) / 1e3, BOUND_BY[times.index(max(times))]
        found.append(HotOp(name, PHASES[phase], ms, ms * 1e3 / total, *_rank_means(name, phase, ranks), bound_by))
    return found


class _LabelledRank(NamedTuple):
    graph: Graph
    cut: Segments
    codes: Ints
    names: list[str]
    launcher: Longs

    def held(self, rows: Longs, times: list[float], on_host: bool) -> Iterator[tuple[str, int, int, float]]:
        """Tasks of the path by row: the name and phase of what each counts to, what bounds it, and its time."""
        cut, phases, other = self.cut, self.graph.ops.phase, PHASES.index("other")
        ops = (cut.op if on_host else self.launcher)[rows].tolist()
        # What is not host time is work of the device, or communication of host threads where there is no device.
        beyond = 1 if (self.graph.kernels.kind != COLLECTIVE).any() else 3
        bounds = np.where(cut.kind[rows] == SYNC, 2, 0).tolist() if on_host else [beyond] * len(rows)
        causes = cut.cause[rows].tolist() if on_host else [-1] * len(rows)
        for op, how, cause, time in zip(ops, bounds, causes, times):
            if cause >= 0:
                what, name = cut.causes.items[cause]
                yield f"{what}: {name}" if name else what, other, how, time
            elif op >= 0:
                yield self.names[self.codes[op]], int(phases[op]), how, time


def launchers(graph: Graph, cut: Segments) -> Longs:
    """For each kernel the call that its launch counts to: the outermost one, as all host time does, not one inside
    it."""
    launches = cut.kind == T4
    around = np.full(len(graph.calls) + 1, -1)  # the last is for kernels whose launch is not in the trace
    around[cut.call[launches]] = cut.op[launches]
    outermost = around[graph.kernels.call]
    is_call = np.append(graph.ops.kind == CALL, False)[outermost]
    return np.where(is_call, outermost, graph.kernels.op)


def _rank_means(name: str, phase: int, ranks: list[_LabelledRank]) -> tuple[int, int, float, float]:
    """Calls, launches, host and device milliseconds of an op: means over the ranks."""
    sums = np.zeros(4)
    for graph, cut, codes, names, launcher in ranks:
        code = names.index(name) if name in names else -1
        ours = np.append((codes == code) & (graph.ops.phase == phase), False)
        host, kernels = ours[cut.op], graph.kernels
        device_us = (kernels.end - kernels.start)[ours[launcher]].sum()
        host_us = cut.duration[host & (cut.kind != SYNC)].sum()
        sums += (ours.sum(), (host & (cut.kind == T4)).sum(), host_us / 1e3, device_us / 1e3)
    calls, launches, host_ms, device_ms = (sums / len(ranks)).tolist()
    return round(calls), round(launches), host_ms, device_ms
