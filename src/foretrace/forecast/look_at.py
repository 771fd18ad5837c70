"""The ops to look at first: those that hold the critical path up longest."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrace.forecast.host import SYNC
from foretrace.forecast.labels import labels
from foretrace.forecast.observation import Rows
from foretrace.forecast.step import Step
from foretrace.forecast.timetable import KERNEL, Timetable
from foretrace.graph import PHASES, Graph
from foretrace.simulation.path import critical_path
from foretrace.simulation.program import Timeline

SHOWN = 10


def look_at(calls: Graph, step: Step, table: Timetable, timeline: Timeline) -> Rows:
    """Calls of one name in one phase, by their time on the critical path, the pause before each included."""
    path = critical_path(table.program, timeline)
    task, us = path.task, path.end - path.start + path.gap
    ops = calls.ops
    shown, names = labels(ops, step.work.call, step.work.name)
    key_of_call = ops.phase.astype(np.int64) * len(names) + shown
    keys, which = np.unique(key_of_call, return_inverse=True)
    kind = np.where(table.kind[task] == KERNEL, 1, np.where(table.kind[task] == SYNC, 2, 0))
    spent = np.zeros((len(keys), 3))
    np.add.at(spent, (which[table.call[task]], kind), us)
    host = table.kind != KERNEL
    durations = table.program.duration
    host_us = np.bincount(which[table.call[host]], durations[host], len(keys))
    device_us = np.bincount(which[table.call[~host]], durations[~host], len(keys))
    launches = np.bincount(which, step.work.launches(len(step)), len(keys))
    count = np.bincount(which, minlength=len(keys))
    total = path.length
    rows: list[dict[str, Any]] = []
    for place in np.argsort(-spent.sum(axis=1), kind="stable")[:SHOWN].tolist():
        phase, name = divmod(int(keys[place]), len(names))
        ms = float(spent[place].sum()) / 1e3
        rows.append({
            "name": names[name], "phase": PHASES[phase], "ms": ms, "share": ms * 1e3 / total if total else 0.0,
            "calls": int(count[place]), "launches": int(launches[place]), "host_ms": float(host_us[place]) / 1e3,
            "device_ms": float(device_us[place]) / 1e3, "mostly": ("host", "device", "sync")[spent[place].argmax()],
        })  # fmt: skip
    return rows
