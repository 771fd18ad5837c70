"""What the charts of a page are drawn from, in plain data: numbers, names, and the kind of chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from foretrace.forecast.workings import Memory
from foretrace.graph.tables import Floats
from foretrace.report.changes import LEAST_MS
from foretrace.report.forecast import CAUSES
from foretrace.report.names import short
from foretrace.report.pages.sheet import Chart

Words = dict[str, Any]

ROWS = 24
"""Bars that one chart shows at most."""
BINS = 48
SURE = 1e-4
"""Spread, as a share of the step, below which there is no distribution to speak of: what was measured is as it was."""
LARGEST = 0.3
"""Share of the time from which on a module is shown as the modules inside it."""
POINTS = 500
"""Points of a line: about as many as a reader can tell apart."""
IDLE = {
    "T1": "host between ops", "T2": "host before launches", "T3": "host after launches", "T4": "host launching",
    "T5": "host between launches", "sync": "host waits as well", "latency": "latency",
}  # fmt: skip
"""What the device stands still for, in short."""
PLACES = {"T1": 3, "T2": 8, "T3": 9, "T4": 2, "T5": 6, "sync": 12, "latency": 14}
"""Colours of it, by place in the palette."""


def parts(words: Words) -> Chart | None:
    """The predicted step as one bar: the device at work, then what it stands still for."""
    if not words["step_ms"] or not words["kernels"]:
        return None
    exposed, waits = words["exposed_communication_ms"], list(words["wait_ms"].values())
    waited = min(sum(waits) / len(waits), exposed) if waits else 0.0
    causes = sorted(words["idle_causes"].items(), key=lambda cause: -cause[1])
    pieces = [{"name": "device computes", "ms": words["device_active_ms"] - exposed, "place": 0}]
    if exposed:
        about = "collectives with no other work beside them"
        pieces.append({"name": "exposed transfers", "ms": exposed - waited, "place": 11, "about": about})
        pieces.append({"name": "waits for other ranks", "ms": waited, "place": 5, "about": about})
    for kind, spent in causes:
        pieces.append({"name": IDLE[kind], "ms": spent, "place": PLACES[kind], "about": f"idle: {CAUSES[kind]}"})
    return {"kind": "parts", "parts": [piece for piece in pieces if piece["ms"] > 0]}


def views(words: Words) -> Chart | None:
    """Time by phase, by kernel family, by module and by op: one at a time."""
    found: list[Words] = []
    for key, title, counted in (
        ("by_phase", "phase", "calls"),
        ("by_family", "family", "kernels"),
        ("by_module", "module", "calls"),
        ("by_op", "op", "calls"),
    ):
        rows = [{**row, "name": short(row["name"]) or "(none)"} for row in words[key]]
        if len(rows) > 1:
            shown = sorted(rows, key=lambda row: -(row["device_ms"] + row["host_ms"]))[:ROWS]
            tree = module_tree(words[key]) if key == "by_module" else None
            found.append({"title": title, "rows": shown, "counted": counted, "tree": tree})
    return {"kind": "views", "views": found} if found else None


def module_tree(rows: Sequence[Words]) -> list[Words]:
    """Modules inside modules, each with its device and host time in milliseconds.

    >>> rows = [{"name": f"net.{i}", "device_ms": 2.0 - i, "host_ms": 1.0} for i in (0, 1)]
    >>> [(one["name"], one["value"]) for one in module_tree(rows)]
    [('net.0', 3.0), ('net.1', 2.0)]
    """
    top: Words = {"children": {}}
    for row in rows:
        spent, level = row["device_ms"] + row["host_ms"], top
        for part in (row["name"] or "outside any module").split("."):
            level = level["children"].setdefault(part, {"value": 0.0, "children": {}})
            level["value"] += spent
    return _opened(_branches(top))


def _opened(branches: list[Words]) -> list[Words]:
    """The largest branches opened until none is most of the tree: a model is one module with all others inside."""
    whole = sum(branch["value"] for branch in branches)
    while branches:
        largest = max(branches, key=lambda branch: float(branch["value"]))
        if largest["value"] < LARGEST * whole or "children" not in largest:
            break
        inner = [{**child, "name": f"{largest['name']}.{child['name']}"} for child in largest["children"]]
        branches = [*(branch for branch in branches if branch is not largest), *inner]
    return branches


def _branches(level: Words) -> list[Words]:
    found = []
    for name, inner in level["children"].items():
        branch: Words = {"name": name, "value": inner["value"]}
        if inner["children"]:
            branch["children"] = _branches(inner)
            own = inner["value"] - sum(child["value"] for child in branch["children"])
            if own > inner["value"] / 1000:
                branch["children"].append({"name": "(itself)", "value": own})
        found.append(branch)
    return found


class RankRow(NamedTuple):
    """What the device of one rank does, in milliseconds."""

    rank: str
    active: float
    exposed: float
    """Communication with nothing beside it, waits included."""
    waits: float
    idle: float
    about: str


def ranks(rows: Sequence[RankRow]) -> Chart | None:
    """A bar for each rank: at work, transferring, waiting for others, idle."""
    if len(rows) < 2:
        return None
    columns = [
        [row.active - row.exposed for row in rows],
        [row.exposed - row.waits for row in rows],
        [row.waits for row in rows],
        [row.idle for row in rows],
    ]
    return {
        "kind": "stacked",
        "rows": [f"rank {row.rank}" for row in rows],
        "parts": ["computes", "transfers", "waits for other ranks", "idle"],
        "kinds": ["matrix product", "communication", "waits for other ranks", "idle"],
        "ms": [[round(max(spent, 0.0), 4) for spent in column] for column in columns],
        "about": [row.about for row in rows],
    }


def distribution(series: Sequence[tuple[str, Floats, Sequence[Words]]]) -> Chart | None:
    """How often a drawn step falls where, for one forecast or several: name, draws and marks of each."""
    known = [(name, draws, marks) for name, draws, marks in series if len(draws)]
    if not any(np.ptp(draws) > SURE * np.max(draws) for _, draws, _ in known):
        return None
    marked = [mark["ms"] for *_, marks in known for mark in marks]
    # The farthest few draws would squeeze the others together.
    low = min(*(float(np.quantile(draws, 0.002)) for _, draws, _ in known), *marked, np.inf)
    high = max(*(float(np.quantile(draws, 0.998)) for _, draws, _ in known), *marked, 0.0)
    room = (high - low or high or 1.0) * 0.06
    low, high = max(low - room, 0.0), high + room
    edges = np.linspace(low, high, BINS + 1)
    return {
        "kind": "distribution",
        "from": low,
        "to": high,
        "width": (high - low) / BINS,
        "series": [
            {"name": name, "shares": (np.histogram(draws, edges)[0] / len(draws)).tolist(), "marks": list(marks)}
            for name, draws, marks in known
        ],
    }


def memory(curves: Sequence[tuple[str, Memory]], origin_us: float, capacity: int | None) -> Chart | None:
    """Bytes held over the step, a line for each rank."""
    if not curves:
        return None
    series, end = [], 0.0
    for name, curve in curves:
        us, nbytes = _thinned(curve)
        at = (us - origin_us) / 1e3
        end = max(end, float(at[-1]))
        series.append({"name": name, "ms": at.round(4).tolist(), "bytes": nbytes.tolist()})
    peak = max(int(curve.nbytes.max()) for _, curve in curves)
    return {"kind": "memory", "series": series, "end_ms": end, "peak": peak, "capacity": capacity}


def _thinned(curve: Memory) -> Memory:
    """No more points than can be seen, the peak among them: of each stretch the fullest."""
    order = np.argsort(curve.us, kind="stable")
    us, nbytes = curve.us[order], curve.nbytes[order]
    if len(us) <= POINTS:
        return Memory(us, nbytes)
    first = np.linspace(0, len(us), POINTS, endpoint=False).astype(int)
    return Memory(us[first], np.maximum.reduceat(nbytes, first))


def changes(rows: Sequence[Words]) -> Chart | None:
    """What got slower and what faster, the largest changes first."""
    moved = sorted((row for row in rows if abs(row["change_ms"]) >= LEAST_MS), key=lambda row: -abs(row["change_ms"]))[
        :ROWS
    ]
    shown = sorted(({**row, "name": short(row["name"])} for row in moved), key=lambda row: -row["change_ms"])
    return {"kind": "changes", "rows": shown} if shown else None
