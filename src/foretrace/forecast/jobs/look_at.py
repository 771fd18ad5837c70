"""The ops of a job to look at first: those that hold the critical path across its ranks up longest."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from foretrace.forecast.host import SYNC, T4, Segments
from foretrace.forecast.labels import labels_of
from foretrace.forecast.look_at import SHOWN
from foretrace.forecast.measured import HOST, Measured
from foretrace.forecast.observation import Rows
from foretrace.graph import PHASES, Graph
from foretrace.graph.tables import Ints
from foretrace.simulate.path import critical_path

HOW = ("host", "device", "sync")


def job_look_at(tasks: Measured, graphs: list[Graph], segments: list[Segments]) -> Rows:
    """Ops of one name in one phase, by their time on the critical path; the rest is the mean over the ranks."""
    path = critical_path(tasks.program, tasks.timeline)
    us = path.end - path.start + path.gap
    shown = [labels_of(graph) for graph in graphs]
    spent: dict[tuple[str, int], np.ndarray] = defaultdict(lambda: np.zeros(len(HOW)))
    for task, time in zip(path.task.tolist(), us.tolist()):
        position, row = int(tasks.graph[task]), int(tasks.row[task])
        graph, cut = graphs[position], segments[position]
        on_host = tasks.kind[task] == HOST
        op = int(cut.op[row] if on_host else graph.kernels.op[row])
        if op >= 0:
            how = 1 if not on_host else 2 if cut.kind[row] == SYNC else 0
            codes, names = shown[position]
            spent[names[codes[op]], int(graph.ops.phase[op])][how] += time
    largest = sorted(spent, key=lambda key: -spent[key].sum())[:SHOWN]
    total = path.length or 1.0
    rows: Rows = []
    for name, phase in largest:
        ms = float(spent[name, phase].sum()) / 1e3
        rows.append({
            "name": name, "phase": PHASES[phase], "ms": ms, "share": ms * 1e3 / total,
            **_of_all(name, phase, graphs, shown, segments), "mostly": HOW[int(spent[name, phase].argmax())],
        })  # fmt: skip
    return rows


def _of_all(
    name: str, phase: int, graphs: list[Graph], shown: list[tuple[Ints, list[str]]], segments: list[Segments]
) -> dict[str, float]:
    """Calls, launches, host and device time of an op: means over the ranks."""
    sums = np.zeros(4)
    for graph, (codes, names), cut in zip(graphs, shown, segments):
        code = names.index(name) if name in names else -1
        ours = np.append((codes == code) & (graph.ops.phase == phase), False)
        host, kernels = ours[cut.op], graph.kernels
        device_us = (kernels.end - kernels.start)[ours[kernels.op]].sum()
        host_us = cut.duration[host & (cut.kind != SYNC)].sum()
        sums += (ours.sum(), (host & (cut.kind == T4)).sum(), host_us / 1e3, device_us / 1e3)
    calls, launches, host_ms, device_ms = (sums / len(graphs)).tolist()
    return {"calls": round(calls), "launches": round(launches), "host_ms": host_ms, "device_ms": device_ms}
