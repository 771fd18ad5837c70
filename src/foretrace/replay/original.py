"""What a recording measured of the step itself: what a replay is held against."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from foretrace.graph import Graph, Storage
from foretrace.replay.harness.comparison import MOST_LETTERS, hidden
from foretrace.replay.memory import main_kind
from foretrace.replay.plan import Plan
from foretrace.replay.texts import printable


def original_of(graph: Graph, plan: Plan, obfuscate: bool = False) -> dict[str, Any]:
    """The original's figures, under the words that a replay uses for its own.

    Of a part of a step nobody knows the time and the memory; of kernels, those count that its calls launched.
    """
    kernels = _kernels(graph, None if plan.whole else {call.row for call in plan.recorded}, obfuscate)
    synced, rate = graph.plain.synced_ms, graph.plain.back_to_back_ms
    storages = list(graph.storages.values())
    peak = graph.plain.peak_memory_bytes or _peak(storages, len(graph.ops))
    return {
        "step_ms": median(synced) if synced and plan.whole else None,
        "step_ms_back_to_back": median(rate) if rate and plan.whole else None,
        "kernel_ms": sum(ms for _, ms in kernels.values()) if kernels else None,
        "launches": int(sum(count for count, _ in kernels.values())) if kernels else None,
        "peak_memory_bytes": peak if plan.whole else None,
        "device": printable(main_kind(storage.device for storage in storages) if obfuscate else graph.device or "cpu"),
        "kernels": kernels,
        "why": None if synced and plan.whole else _why(plan),
    }


def _why(plan: Plan) -> str:
    """Why nobody knows the time of the original."""
    return (
        "the recording timed no plain steps"
        if plan.whole
        else "its figures are of the whole step, in the recorded batch"
    )


def _kernels(graph: Graph, rows: set[int] | None, obfuscate: bool) -> dict[str, list[float]]:
    """Count and milliseconds of each name of a kernel."""
    table = graph.kernels
    found: dict[str, list[float]] = {}
    spent = (table.end - table.start) / 1e3
    for code, op, ms in zip(table.name.tolist(), table.op.tolist(), spent.tolist()):
        if rows is None or op in rows:
            entry = found.setdefault(table.names[code], [0, 0.0])
            entry[0] += 1
            entry[1] += ms
    return {hidden(name) if obfuscate else printable(name)[:MOST_LETTERS]: entry for name, entry in found.items()}


def _peak(storages: list[Storage], calls: int) -> int | None:
    """Most bytes alive at once on the step's own kind of device, by births and deaths of storages."""
    main = main_kind(storage.device for storage in storages)
    held = [storage for storage in storages if storage.device.partition(":")[0] == main]
    if not held:
        return None
    change = np.zeros(calls + 3, np.int64)
    for storage in held:
        change[storage.birth + 1] += storage.nbytes
        if storage.death >= 0:
            change[storage.death + 1] -= storage.nbytes
    return int(np.cumsum(change).max())
