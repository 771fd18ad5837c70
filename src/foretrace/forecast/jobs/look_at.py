"""The ops of a job to look at first: those that hold the critical path across its ranks up longest."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from foretrace.forecast.host import SYNC, T4, Segments
from foretrace.forecast.labels import labels_of
from foretrace.forecast.look_at import SHOWN
from foretrace.forecast.measured import HOST, Measured
from foretrace.forecast.observation import Rows
from foretrace.graph import PHASES, Graph
from foretrace.graph.tables import CALL, COLLECTIVE, Ints, Longs
from foretrace.simulation.path import critical_path

HOW = ("host", "device", "sync", "exchange")


def job_look_at(tasks: Measured, graphs: list[Graph], segments: list[Segments]) -> Rows:
    """Ops of one name in one phase, by their time on the critical path; the rest is the mean over the ranks."""
    path = critical_path(tasks.program, tasks.timeline)
    us = path.end - path.start + path.gap
    ranks = [_Rank(graph, cut, *labels_of(graph), launchers(graph, cut)) for graph, cut in zip(graphs, segments)]
    spent: dict[tuple[str, int], np.ndarray] = defaultdict(lambda: np.zeros(len(HOW)))
    for task, time in zip(path.task.tolist(), us.tolist()):
        rank, row = ranks[int(tasks.graph[task])], int(tasks.row[task])
        on_host = tasks.kind[task] == HOST
        op = int(rank.cut.op[row] if on_host else rank.launcher[row])
        if op >= 0:
            how = rank.beyond if not on_host else 2 if rank.cut.kind[row] == SYNC else 0
            spent[rank.names[rank.codes[op]], int(rank.graph.ops.phase[op])][how] += time
    largest = sorted(spent, key=lambda key: -spent[key].sum())[:SHOWN]
    total = tasks.timeline.span or 1.0  # with what ranks began apart, as in the path that is shown
    rows: Rows = []
    for name, phase in largest:
        ms = float(spent[name, phase].sum()) / 1e3
        rows.append({
            "name": name, "phase": PHASES[phase], "ms": ms, "share": ms * 1e3 / total,
            **_of_all(name, phase, ranks), "mostly": HOW[int(spent[name, phase].argmax())],
        })  # fmt: skip
    return rows


class _Rank(NamedTuple):
    graph: Graph
    cut: Segments
    codes: Ints
    names: list[str]
    launcher: Longs

    @property
    def beyond(self) -> int:
        """What is not on its host: work of its device, or what processors exchange where there is none."""
        return 1 if (self.graph.kernels.kind != COLLECTIVE).any() else 3


def launchers(graph: Graph, cut: Segments) -> Longs:
    """For each kernel the call that its launch counts to: the outermost one, as all host time does, and no op in it."""
    launches = cut.kind == T4
    around = np.full(len(graph.calls) + 1, -1)  # the last is for kernels whose launch nobody saw
    around[cut.call[launches]] = cut.op[launches]
    outermost = around[graph.kernels.call]
    is_call = np.append(graph.ops.kind == CALL, False)[outermost]
    return np.where(is_call, outermost, graph.kernels.op)


def _of_all(name: str, phase: int, ranks: list[_Rank]) -> dict[str, float]:
    """Calls, launches, host and device time of an op: means over the ranks."""
    sums = np.zeros(4)
    for graph, cut, codes, names, launcher in ranks:
        code = names.index(name) if name in names else -1
        ours = np.append((codes == code) & (graph.ops.phase == phase), False)
        host, kernels = ours[cut.op], graph.kernels
        device_us = (kernels.end - kernels.start)[ours[launcher]].sum()
        host_us = cut.duration[host & (cut.kind != SYNC)].sum()
        sums += (ours.sum(), (host & (cut.kind == T4)).sum(), host_us / 1e3, device_us / 1e3)
    calls, launches, host_ms, device_ms = (sums / len(ranks)).tolist()
    return {"calls": round(calls), "launches": round(launches), "host_ms": host_ms, "device_ms": device_ms}
