"""The critical path in words: what it went through, on which rank, for how long."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrace.forecast.host import KINDS, Segments
from foretrace.forecast.measured import HOST, TRANSFER, Measured
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE, COPY, SET, Floats, Longs, Names
from foretrace.simulation.path import critical_path

LATENCY_US = 20.0
"""A kernel starts this soon after what it waited for is over; what takes longer, the trace does not explain."""

LATE_START, LATENCY, UNEXPLAINED = "late start", "latency", "unexplained"
EARLIER = "launched before"
"""A kernel of the step before, or from before the trace began."""


@dataclass
class Critical:
    """Where the time went from the first thing the job did to the last."""

    ms: float = 0.0
    parts: list[dict[str, Any]] = field(default_factory=list)
    """What, name, rank, ms and share, largest first. A transfer, which is of all ranks, has no rank."""
    by_rank: dict[int, float] = field(default_factory=dict)
    """Milliseconds of the path on each rank that it touches."""


def describe(job: Measured, graphs: list[Graph], segments: list[Segments]) -> Critical:
    """Walk the critical path and add up what it went through.

    A path that begins later than the job does began on a rank that started late: that time is its first part.
    """
    path = critical_path(job.program, job.timeline)
    if not len(path.task):
        return Critical()
    task, names = path.task, Names([""])
    what, name = np.zeros(len(task), np.int64), np.zeros(len(task), np.int64)
    for position, (graph, cut) in enumerate(zip(graphs, segments)):
        here = job.graph[task] == position
        what[here], name[here] = _words(job.kind[task[here]], job.row[task[here]], graph, cut, names)
    rank = np.array([graph.rank for graph in graphs])[job.graph[task]]
    of_all = job.kind[task] == TRANSFER
    legs = np.stack([what, name, np.where(of_all, -1, rank)], axis=1)

    has_gap = path.gap > 0
    gap = path.gap[has_gap]
    gap_kind = np.where(gap > LATENCY_US, names.code(UNEXPLAINED), names.code(LATENCY))
    gaps = np.stack([gap_kind, np.zeros_like(gap_kind), rank[has_gap]], axis=1)

    first = int(np.argmin(job.timeline.start))
    first_rank = graphs[job.graph[first]].rank  # the job runs on it while the path has not begun
    lead = np.array([[*_lead(int(rank[0]), first_rank, names), first_rank]])
    lead_us = path.start[0] - job.timeline.start[first]
    return _summed(np.concatenate([legs, gaps, lead]), np.concatenate([path.end - path.start, gap, [lead_us]]), names)


def _lead(rank: int, first_rank: int, names: Names) -> tuple[int, int]:
    """What the time is from the first thing the job did to where the path begins."""
    if rank == first_rank:
        return names.code(UNEXPLAINED), names.code("")
    return names.code(LATE_START), names.code(f"rank {rank} began after rank {first_rank}")


def _words(kind: Any, row: Longs, graph: Graph, cut: Segments, names: Names) -> tuple[Longs, Longs]:
    """Codes of what each task is and of its name."""
    host = kind == HOST
    what, name = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
    what[host], name[host] = _host_words(row[host], graph, cut, names)
    what[~host], name[~host] = _device_words(row[~host], graph, names)
    what[kind == TRANSFER] = names.code("transfer")
    return what, name


def _host_words(row: Longs, graph: Graph, cut: Segments, names: Names) -> tuple[Longs, Longs]:
    kinds = np.array([names.code(kind) for kind in KINDS])
    op_names = np.array([names.code(name) for name in graph.ops.names.items] + [names.code("")])
    return kinds[cut.kind[row]], op_names[np.append(graph.ops.name, -1)[cut.op[row]]]


def _device_words(row: Longs, graph: Graph, names: Names) -> tuple[Longs, Longs]:
    kinds = np.full(4, names.code("kernel"))
    kinds[[COPY, SET, COLLECTIVE]] = names.code("copy"), names.code("memset"), names.code("collective")
    kernel_names = np.array([names.code(name) for name in graph.kernels.names.items] + [names.code("")])
    what = np.where(graph.kernels.call[row] >= 0, kinds[graph.kernels.kind[row]], names.code(EARLIER))
    return what, kernel_names[graph.kernels.name[row]]


def _summed(columns: Longs, us: Floats, names: Names) -> Critical:
    taken = us > 0
    ranks = int(columns[:, 2].max()) + 2
    key = (columns[:, 0] * len(names) + columns[:, 1]) * ranks + columns[:, 2] + 1
    keys, which = np.unique(key[taken], return_inverse=True)
    sums = np.bincount(which, us[taken], len(keys)) / 1e3
    total = float(us.sum()) / 1e3
    parts: list[dict[str, Any]] = []
    by_rank: dict[int, float] = defaultdict(float)
    for code, ms in sorted(zip(keys.tolist(), sums.tolist()), key=lambda part: -part[1]):
        (what, name), rank = divmod(code // ranks, len(names)), code % ranks - 1
        parts.append({"what": names[what], "name": names[name], "rank": rank, "ms": ms, "share": ms / total})
        if rank < 0:
            parts[-1]["rank"] = None
        else:
            by_rank[rank] += ms
    return Critical(total, parts, dict(sorted(by_rank.items())))
