"""What the charts of a page are drawn from, in plain data: numbers, names, and the kind of chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from foretrace.forecast.workings import Memory
from foretrace.graph.tables import Floats, Longs
from foretrace.report.changes import LEAST_MS
from foretrace.report.forecast import CAUSES
from foretrace.report.names import short
from foretrace.report.pages.modules import module_tree
from foretrace.report.pages.sheet import Chart
from foretrace.report.sections import OVERHEADS

Words = dict[str, Any]

UNSEEN = 5e-4
"""Share of the step, or of the largest change, below which a piece is not worth its line."""
ROWS = 24
"""Bars that one chart shows at most."""
BINS = 30
SURE = 1e-4
"""Spread, as a share of the step, below which there is no distribution to speak of: what was measured is as it was."""
POINTS = 500
"""Points of a line: about as many as a reader can tell apart."""
DIFFERENT = 0.02
"""Share from which on two ranks' peaks differ so that both are shown."""
IDLE = {
    "T1": "host between ops", "T2": "host before launches", "T3": "host after launches", "T4": "host launching",
    "T5": "host between launches", "sync": "host waits as well", "latency": "latency",
}  # fmt: skip
"""What the device stands still for, in short."""
WAITS, COMMUNICATION = "waits for other ranks", "communication"


def parts(words: Words) -> Chart | None:
    """The predicted step as one bar: the device at work, then what it stands still for."""
    if not words["step_ms"] or not words["kernels"]:
        return None
    exposed, waits = words["exposed_communication_ms"], list(words["wait_ms"].values())
    waited = min(sum(waits) / len(waits), exposed) if waits else 0.0
    idle = dict(words["idle_causes"])
    early = min(_done_early(words), idle.get("latency", 0.0))
    if early:
        idle["latency"] -= early
    # The host's parts lie side by side, the longest first.
    causes = sorted(idle.items(), key=lambda cause: (cause[0] not in OVERHEADS, -cause[1]))
    pieces = [
        {"name": "device computes", "ms": words["device_active_ms"] - exposed, "about": "kernels run"},
        {"name": "exposed transfers", "ms": exposed - waited, "about": "collectives with no other work beside them"},
        {"name": WAITS, "ms": waited, "about": "collectives whose last rank has not come yet"},
        *({"name": IDLE[kind], "ms": spent, "about": f"idle: {CAUSES[kind]}"} for kind, spent in causes),
        {"name": "done before others", "ms": early, "about": "idle: from a rank's end to the last one's"},
    ]
    return {"kind": "parts", "parts": [piece for piece in pieces if piece["ms"] > UNSEEN * words["step_ms"]]}


def _done_early(words: Words) -> float:
    """Milliseconds from a rank's end to that of the job, mean over ranks."""
    ends = [row["start_ms"] + row["step_ms"] for row in words["ranks"]]
    return float(np.mean([max(words["step_ms"] - end, 0.0) for end in ends])) if ends else 0.0


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
        if key == "by_family":
            rows = [_with_waits(row, words) for row in rows]
        if len(rows) > 1:
            shown = sorted(rows, key=lambda row: -(row["device_ms"] + row["host_ms"]))[:ROWS]
            tree = module_tree(words[key]) if key == "by_module" else None
            found.append({"title": title, "rows": shown, "counted": counted, "tree": tree, "of": len(rows)})
    return {"kind": "views", "views": found} if found else None


def _with_waits(row: Words, words: Words) -> Words:
    """What of the communication is waiting for other ranks, mean over ranks as the rest is."""
    waits = [wait for wait in words["wait_ms"].values() if wait]
    if row["name"] != COMMUNICATION or not waits:
        return row
    return {**row, "wait_ms": min(sum(waits) / len(words["wait_ms"]), row["device_ms"])}


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
        "parts": ["computes", "transfers", WAITS, "idle"],
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


def memory(curves: Sequence[tuple[int, Memory]], origin_us: float, capacity: int | None) -> Chart | None:
    """Bytes held over the step: a line for one rank; of several the fullest, the least full, and all between them."""
    if not curves:
        return None
    end = max(float(curve.us.max()) for _, curve in curves)
    by_peak = sorted(((rank, int(curve.nbytes.max())) for rank, curve in curves), key=lambda one: -one[1])
    (fullest, peak), (emptiest, least) = by_peak[0], by_peak[-1]
    edges = np.linspace(origin_us, end, POINTS)
    held = {rank: _held(curve, edges) for rank, curve in curves}
    named = {fullest: f"rank {fullest}" + (", the fullest" if len(curves) > 1 else "")}
    if least < (1 - DIFFERENT) * peak:
        named[emptiest] = f"rank {emptiest}, the least full"
    at = ((edges - origin_us) / 1e3).round(4).tolist()
    every = np.stack(list(held.values()))
    band = {"name": f"all {len(curves)} ranks", "ms": at, "low": every.min(0).tolist(), "high": every.max(0).tolist()}
    return {
        "kind": "memory",
        "series": [{"name": name, "ms": at, "bytes": held[rank].tolist()} for rank, name in named.items()],
        "band": band if len(curves) > 1 else None,
        "fullest": fullest,
        "end_ms": (end - origin_us) / 1e3,
        "peak": peak,
        "capacity": capacity,
    }


def _held(curve: Memory, edges: Floats) -> Longs:
    """The most that is held from each edge to the next.

    >>> _held(Memory(np.array([0.0, 1.0, 4.0]), np.array([5, 9, 2])), np.array([0.0, 2.0, 4.0]))
    array([9, 9, 2])
    """
    order = np.argsort(curve.us, kind="stable")
    us, nbytes = curve.us[order], curve.nbytes[order]
    # What an edge finds was there before it; before the first call there is what that found.
    most = nbytes[np.maximum(np.searchsorted(us, edges, "right") - 1, 0)]
    np.maximum.at(most, np.clip(np.searchsorted(edges, us, "right") - 1, 0, len(edges) - 1), nbytes)
    return most


def changes(rows: Sequence[Words], verdict: bool = True) -> Chart | None:
    """What got slower and what faster, the largest changes first; ``verdict``: whether slower is worse."""
    largest = max((abs(row["change_ms"]) for row in rows), default=0.0)
    seen = [row for row in rows if abs(row["change_ms"]) >= max(LEAST_MS, UNSEEN * largest)]
    moved = sorted(seen, key=lambda row: -abs(row["change_ms"]))
    shown = sorted(({**row, "name": short(row["name"])} for row in moved[:ROWS]), key=lambda row: -row["change_ms"])
    return {"kind": "changes", "rows": shown, "verdict": verdict, "of": len(moved)} if shown else None
