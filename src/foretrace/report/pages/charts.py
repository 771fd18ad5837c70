"""The data of a page's charts: numbers, names, and the kind of chart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foretrace.analysis.breakdown import kernel_family
from foretrace.analysis.compare import PathChange, TimeChange
from foretrace.analysis.memory import MemoryCurve
from foretrace.analysis.report import StepReport, TimeRow, plain
from foretrace.graph.tables import Floats, Longs
from foretrace.report.comparisons import change_name
from foretrace.report.formatting import LEAST_CHANGE_MS, short_name
from foretrace.report.pages.details import shapes_of
from foretrace.report.pages.page import Chart
from foretrace.report.pages.timeline import waits_for_ranks
from foretrace.report.step import CAUSES, COVERAGE, OVERHEADS

if TYPE_CHECKING:
    from foretrace.analysis.report import Workings
    from foretrace.prediction.rates import Roofline, RooflineCalls

Piece = dict[str, Any]
"""One bar, row, point or area of a chart."""

LEAST_SHARE = 5e-4
"""Share of the step, or of the largest change, below which a piece is left out."""
MAX_BARS = 24
"""Bars that one chart shows."""
BINS = 30
NO_SPREAD = 1e-4
"""Spread of the samples, as a share of the step, below which no distribution is drawn: everything was measured."""
POINTS = 500
"""Points of a line: about as many as a reader can tell apart."""
DIFFERENT_PEAKS = 0.02
"""Share by which two ranks' peaks differ so that both are drawn."""
IDLE = {
    "T1": "host between ops", "T2": "host before launches", "T3": "host after launches", "T4": "host launching",
    "T5": "host between launches", "sync": "host waits", "latency": "latency",
}  # fmt: skip
"""Short names of what the device idles for."""
WAITS, COMMUNICATION = "waits for other ranks", "communication"


def parts(report: StepReport) -> Chart | None:
    """A predicted step as one bar: the device at work, then what it idles for."""
    if not report.step_ms or not report.kernels:
        return None
    exposed, waits = report.exposed_communication_ms, [rank.wait_ms or 0.0 for rank in report.ranks]
    waited = min(sum(waits) / len(waits), exposed) if waits else 0.0
    idle = dict(report.idle_causes)
    ends = [rank.start_ms + rank.step_ms for rank in report.ranks]
    done_early = float(np.mean([max(report.step_ms - end, 0.0) for end in ends])) if ends else 0.0
    early = min(done_early, idle.get("latency", 0.0))
    if early:
        idle["latency"] -= early
    # The host's parts lie side by side, the longest first.
    causes = sorted(idle.items(), key=lambda cause: (cause[0] not in OVERHEADS, -cause[1]))
    pieces: list[Piece] = [
        {"name": "device computes", "ms": report.device_active_ms - exposed, "about": "kernels run"},
        {"name": "exposed transfers", "ms": exposed - waited, "about": "collectives that no other work overlaps"},
        {"name": WAITS, "ms": waited, "about": "collectives whose last rank has not arrived yet"},
        *(
            {"name": IDLE.get(kind, kind), "ms": spent, "about": f"idle: {CAUSES.get(kind, kind)}"}
            for kind, spent in causes
        ),
        {"name": "done before others", "ms": early, "about": "idle: from a rank's end to the last rank's end"},
    ]
    return {"kind": "parts", "parts": [plain(piece) for piece in pieces if piece["ms"] > LEAST_SHARE * report.step_ms]}


HOST_TIME = {
    "op": "inside its calls",
    "family": "in launching its kernels",
    "all": "all of it, also between its calls (T1)",
}
"""What the host time of a row is, by what rows are of."""


def views(report: StepReport) -> Chart | None:
    """Time by phase, by kernel family, by module and by op: one at a time."""
    found: list[Piece] = []
    waits = sum(rank.wait_ms or 0.0 for rank in report.ranks)
    for title, times, counted in (
        ("phase", report.by_phase, "calls"),
        ("family", report.by_family, "kernels"),
        ("module", report.by_module, "calls"),
        ("op", report.by_op, "calls"),
    ):
        if len(times) < 2:
            continue
        largest = sorted(times, key=lambda row: -(row.device_ms + row.host_ms))[:MAX_BARS]
        rows = [{**plain(row), "name": short_name(row.name) or "(none)"} for row in largest]
        for row in rows:
            if title == "family" and row["name"] == COMMUNICATION and waits:  # a part of it, mean over ranks
                row["wait_ms"] = min(round(waits / len(report.ranks), 4), row["device_ms"])
        tree = module_tree(times) if title == "module" else None
        host = HOST_TIME.get("op" if counted == "kernels" and not report.device_active_ms else title, HOST_TIME["all"])
        found.append({"title": title, "rows": rows, "counted": counted, "tree": tree, "of": len(times), "host": host})
    return {"kind": "views", "views": found} if found else None


LARGEST_MODULE = 0.3
"""Share of the time from which on a module is shown as the modules inside it."""
LEAST_OWN = 1e-3
"""Share of a module's time below which its own calls are not shown next to its submodules."""


def module_tree(rows: Sequence[TimeRow]) -> list[Piece]:
    """Modules inside modules: ``value`` is device and host time in milliseconds, ``host`` the host's part of it.

    >>> rows = [TimeRow(f"net.{i}", 2.0 - i, 1.0, 1, 0.5) for i in (0, 1)]
    >>> [(one["name"], one["value"], one["host"]) for one in module_tree(rows)]
    [('net.0', 3.0, 1.0), ('net.1', 2.0, 1.0)]
    """
    top = _empty_module()
    for row in rows:
        level = top
        for part in (row.name or "outside any module").split("."):
            level = level["children"].setdefault(part, _empty_module())
            level["value"] += row.device_ms + row.host_ms
            level["host"] += row.host_ms
    return _opened(_submodules(top))


def _empty_module() -> Piece:
    return {"value": 0.0, "host": 0.0, "children": {}}


def _opened(modules: list[Piece]) -> list[Piece]:
    """The largest modules opened until none is most of the tree: a model is one module with all others inside."""
    whole = sum(module["value"] for module in modules)
    while modules:
        largest = max(modules, key=lambda module: float(module["value"]))
        if largest["value"] < LARGEST_MODULE * whole or "children" not in largest:
            break
        inner = [{**child, "name": f"{largest['name']}.{child['name']}"} for child in largest["children"]]
        modules = [*(module for module in modules if module is not largest), *inner]
    return modules


def _submodules(level: Piece) -> list[Piece]:
    found = []
    for name, inner in level["children"].items():
        module: Piece = {"name": name, "value": inner["value"], "host": inner["host"]}
        if inner["children"]:
            module["children"] = _submodules(inner)
            own = {key: inner[key] - sum(child[key] for child in module["children"]) for key in ("value", "host")}
            if own["value"] > LEAST_OWN * inner["value"]:
                module["children"].append({"name": "(itself)", **own})
        found.append(module)
    return found


class RankBar(NamedTuple):
    """Device time of one rank by what it does, in milliseconds."""

    rank: str
    active: float
    exposed: float
    """Communication that no other work overlaps, waits included."""
    waits: float
    idle: float
    about: str


def ranks(rows: Sequence[RankBar]) -> Chart | None:
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


def distribution(series: Sequence[tuple[str, Floats, Sequence[Piece]]]) -> Chart | None:
    """A histogram of the sampled step times of one prediction or several: name, samples and marks of each."""
    known = [(name, samples, marks) for name, samples, marks in series if len(samples)]
    if not any(np.ptp(samples) > NO_SPREAD * np.max(samples) for _, samples, _ in known):
        return None
    marked = [mark["ms"] for *_, marks in known for mark in marks]
    # The farthest few samples would squeeze the others together.
    low = min(*(float(np.quantile(samples, 0.002)) for _, samples, _ in known), *marked, np.inf)
    high = max(*(float(np.quantile(samples, 0.998)) for _, samples, _ in known), *marked, 0.0)
    margin = (high - low or high or 1.0) * 0.06
    low, high = max(low - margin, 0.0), high + margin
    edges = np.linspace(low, high, BINS + 1)
    return {
        "kind": "distribution",
        "from": low,
        "to": high,
        "width": (high - low) / BINS,
        "series": [
            {"name": name, "shares": (np.histogram(samples, edges)[0] / len(samples)).tolist(), "marks": list(marks)}
            for name, samples, marks in known
        ],
    }


def memory(
    curves: Sequence[tuple[int, MemoryCurve]],
    origin_us: float,
    capacity: int | None,
    by_kind: Callable[[int], dict[str, MemoryCurve]] = lambda rank: {},
    workspaces: int = 0,
) -> Chart | None:
    """Bytes held over the step: of one rank, by kind where known; of several the fullest, the least full, and all
    between them.

    ``by_kind`` is asked for the fullest rank; ``workspaces`` are bytes besides, allocated all the time.
    """
    if not curves:
        return None
    curves = [(rank, MemoryCurve(curve.us, curve.nbytes + workspaces)) for rank, curve in curves]
    end = max(float(curve.us.max()) for _, curve in curves)
    by_peak = sorted(((rank, int(curve.nbytes.max())) for rank, curve in curves), key=lambda one: -one[1])
    (fullest, peak), (emptiest, least) = by_peak[0], by_peak[-1]
    edges = np.linspace(origin_us, end, POINTS)
    held = {rank: _held(curve, edges) for rank, curve in curves}
    named = {fullest: f"rank {fullest}" + (", the fullest" if len(curves) > 1 else "")}
    if least < (1 - DIFFERENT_PEAKS) * peak:
        named[emptiest] = f"rank {emptiest}, the least full"
    at = ((edges - origin_us) / 1e3).round(4).tolist()
    every = np.stack(list(held.values()))
    band = {"name": f"all {len(curves)} ranks", "ms": at, "low": every.min(0).tolist(), "high": every.max(0).tolist()}
    kinds = dict(by_kind(fullest))
    if kinds and workspaces:
        us = next(iter(kinds.values())).us
        kinds["workspaces of libraries"] = MemoryCurve(us, np.full(len(us), workspaces, np.int64))
    whole = MemoryCurve(next(iter(kinds.values())).us, np.sum([k.nbytes for k in kinds.values()], 0)) if kinds else None
    drawn = _moments(whole, edges) if whole else None
    return {
        "kind": "memory",
        "kinds": [{"name": kind, "bytes": curve.nbytes[drawn].tolist()} for kind, curve in kinds.items()]
        if len(curves) == 1
        else [],
        "at_peak": {kind: int(curve.nbytes[whole.nbytes.argmax()]) for kind, curve in kinds.items()} if whole else {},
        "series": [{"name": name, "ms": at, "bytes": held[rank].tolist()} for rank, name in named.items()],
        "band": band if len(curves) > 1 else None,
        "fullest": fullest,
        "end_ms": (end - origin_us) / 1e3,
        "peak": peak,
        "capacity": capacity,
    }


def _held(curve: MemoryCurve, edges: Floats) -> Longs:
    """The peak from each edge to the next.

    >>> _held(MemoryCurve(np.array([0.0, 1.0, 4.0]), np.array([5, 9, 2])), np.array([0.0, 2.0, 4.0]))
    array([9, 9, 2])
    """
    return curve.nbytes[_moments(curve, edges)]


def _moments(curve: MemoryCurve, edges: Floats) -> Longs:
    """Where in a curve its peak from each edge to the next is."""
    order = np.argsort(curve.us, kind="stable")
    us, nbytes = curve.us[order], curve.nbytes[order]
    # At an edge the last value before it holds; before the first call its own does.
    at_edge = np.maximum(np.searchsorted(us, edges, "right") - 1, 0)
    fullest, by_size = at_edge.copy(), np.argsort(nbytes, kind="stable")
    fullest[np.clip(np.searchsorted(edges, us, "right") - 1, 0, len(edges) - 1)[by_size]] = by_size  # the last counts
    return np.asarray(order[np.where(nbytes[fullest] > nbytes[at_edge], fullest, at_edge)])


def changes(rows: Sequence[TimeChange | PathChange], verdict: bool = True) -> Chart | None:
    """What got slower and what faster, the largest changes first; ``verdict``: whether slower is worse."""
    largest = max((abs(row.change_ms) for row in rows), default=0.0)
    seen = [row for row in rows if abs(row.change_ms) >= max(LEAST_CHANGE_MS, LEAST_SHARE * largest)]
    moved = sorted(seen, key=lambda row: -abs(row.change_ms))
    shown = sorted(moved[:MAX_BARS], key=lambda row: -row.change_ms)
    bars = [{**asdict(row), "name": _change_label(row)} for row in shown]
    return {"kind": "changes", "rows": bars, "verdict": verdict, "of": len(moved)} if bars else None


def _change_label(row: TimeChange | PathChange) -> str:
    if isinstance(row, TimeChange):
        return change_name(row)
    return f"host, {OVERHEADS[row.what]}" if row.what in OVERHEADS else row.what


def sources(workings: Workings) -> Chart | None:
    """Device time by kernel family and how it is known, waits excluded, mean over ranks; None for a measured step."""
    from foretrace.prediction.device_work import SOURCES

    ms: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for graph, codes, wait in zip(workings.graphs, workings.sources, waits_for_ranks(workings)):
        kernels, op_names = graph.kernels, [*graph.ops.names.items, ""]
        op = np.append(graph.ops.name, len(op_names) - 1)[kernels.op]
        columns = (kernels.name.tolist(), op.tolist(), (kernels.end - kernels.start - wait).tolist(), codes.tolist())
        for name, of, us, code in zip(*columns):
            family = kernel_family(kernels.names[name], op_names[of])
            ms[family][SOURCES[code]] += us / 1e3 / len(workings.graphs)
    if not ms:
        return None
    families = sorted(ms, key=lambda name: -sum(ms[name].values()))
    used = [source for source in SOURCES.values() if any(ms[name][source] for name in families)]
    return {
        "kind": "stacked",
        "rows": families,
        "parts": [COVERAGE[source] for source in used],
        "ms": [[round(ms[name][source], 4) for name in families] for source in used],
    }


MAX_CALLS = 400
"""Kinds of calls in a roofline, those that take longest."""
LEAST_INTENSITY = 0.01
"""FLOPs per byte at which calls without arithmetic are drawn: copies and fills have none."""
NOTICEABLE = 2e-3
"""Share of the device time from which on a call may stretch the axes."""


def roofline(workings: Workings) -> Chart | None:
    """The calls of the first rank by name and shapes, by arithmetic intensity and FLOP/s, below the device's roofs."""
    from foretrace.prediction.rates import roofline as device_roofline

    found = device_roofline(workings)
    if found is None:
        return None
    # Links, not the device's memory, limit a collective.
    calls = [alike for alike in found.calls if alike.nbytes and kernel_family("", alike.op.name) != COMMUNICATION]
    total = sum(sum(alike.us) for alike in calls)
    return _axes([_call(alike, total) for alike in calls[:MAX_CALLS]], found) if calls else None


def _call(alike: RooflineCalls, total_us: float) -> Piece:
    op, us = alike.op, float(np.mean(alike.us))
    return {
        "name": short_name(op.name),
        "family": kernel_family("", op.name),
        "shapes": shapes_of(op),
        "count": len(alike.us),
        "ms": sum(alike.us) / 1e3,
        "share": sum(alike.us) / total_us,
        "intensity": max(alike.flops / alike.nbytes, LEAST_INTENSITY),
        "tflops": max(alike.flops, LEAST_INTENSITY * alike.nbytes) / us / 1e6,
        "gbps": alike.nbytes / us / 1e3,
        "rate": alike.rate,
        "reached": min(alike.least_us / us, 1.0),
    }


def _axes(calls: list[Piece], found: Roofline) -> Chart:
    """The calls, the peak rates above them, and axes that hold both."""
    from foretrace.prediction.rates import DEFAULT_RATE

    intensity = [call["intensity"] for call in calls]
    speed = [call["tflops"] for call in calls if call["share"] > NOTICEABLE]
    by_rate: dict[float, list[str]] = defaultdict(list)
    for rate in sorted({call["rate"] for call in calls if call["intensity"] > 1}):
        by_rate[found.peaks[rate]].append(rate)
    top = max(by_rate, default=found.peaks[DEFAULT_RATE])
    return {
        "kind": "roofline",
        "ops": calls,
        "none": LEAST_INTENSITY,
        "gbps": found.memory_gbps,
        "rates": [{"name": ", ".join(names), "tflops": tflops} for tflops, names in sorted(by_rate.items())],
        "from": _power_of_ten(min(intensity), np.floor),
        "to": _power_of_ten(max(*intensity, top / found.memory_gbps * 1e4), np.ceil),
        "least": _power_of_ten(min(speed, default=top / 1e6), np.floor),
        "most": _power_of_ten(top, np.ceil),
    }


def _power_of_ten(value: float, rounded: Callable[[float], float]) -> float:
    """The power of ten below or above a value.

    >>> _power_of_ten(30.0, np.ceil), _power_of_ten(30.0, np.floor)
    (100.0, 10.0)
    """
    return float(10.0 ** rounded(np.log10(value)))
