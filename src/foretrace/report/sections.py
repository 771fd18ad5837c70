"""The tables behind the headline, each only where it has something to say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType

from foretrace.report.names import short
from foretrace.report.numbers import bytes_, ms, percent
from foretrace.report.tables import bar, notes, table

Words = dict[str, Any]

OVERHEADS = {
    "T1": "between ops",
    "T2": "op start to first launch",
    "T3": "last launch to op end",
    "T4": "in launch calls",
    "T5": "between launches of an op",
}
WITHOUT_LAUNCHES = {"T1": "between ops", "T2": "inside ops"}
VIEWS = {"by_op": "op", "by_family": "kernel family", "by_phase": "phase", "by_module": "module"}
RANKS_SHOWN = 16


def sections(words: Words, top: int) -> Iterator[RenderableType]:
    """Every table that has something to say, at most ``top`` rows each."""
    if len(words["step_ms"]) > 1 or words["collectives"]:
        yield _ranks(words)
    if words["stragglers"]:
        yield stragglers(words)
    if words["collectives"]:
        yield _collectives(words, top)
    if words["critical_path"]:
        yield critical_path(words, top)
    if words["overheads"]:
        yield _overheads(words)
    for key, what in VIEWS.items():
        if len(words[key]) > 1:
            yield time_by(what, words[key], top, on_device=bool(words["device_span_ms"]))
    if words["notes"]:
        yield notes(words["notes"])


def _ranks(words: Words) -> RenderableType:
    """A line a rank; of many ranks, those that wait least and most."""
    overlap = words["overlap"]
    columns: dict[str, Callable[[Any], str]] = {
        "rank": str,
        "step ms": lambda rank: ms(words["step_ms"][rank]),
        "active": lambda rank: ms(words["device_active_ms"].get(rank)),
        "idle": lambda rank: ms(words["device_idle_ms"].get(rank)),
        "waits": lambda rank: ms(words["wait_ms"].get(rank)),
        "comm": lambda rank: ms(overlap.get(rank, {}).get("communication_ms")),
        "exposed": lambda rank: ms(overlap.get(rank, {}).get("exposed_ms")),
        "peak": lambda rank: bytes_(words["peak_memory_bytes"].get(rank)),
    }
    if not words["device_span_ms"]:
        columns = {name: columns[name] for name in ("rank", "step ms", "waits", "peak")}
    title, shown = some_ranks(sorted(words["step_ms"], key=int), lambda rank: words["wait_ms"].get(rank) or 0.0)
    return table(title, list(columns), _cells(columns, shown))


def some_ranks(ranks: Sequence[Any], wait: Callable[[Any], float]) -> tuple[str, list[Any]]:
    """The ranks that a table shows, and its title: all of them; of many, those that wait least and most.

    >>> some_ranks([0, 1, 2], wait=float)
    ('Ranks', [0, 1, 2])
    >>> some_ranks(range(100), wait=float)[1][7:9]
    [7, 92]
    """
    if len(ranks) <= RANKS_SHOWN:
        return "Ranks", list(ranks)
    places = sorted(range(len(ranks)), key=lambda place: wait(ranks[place]))
    shown = sorted(places[: RANKS_SHOWN // 2] + places[-RANKS_SHOWN // 2 :])
    title = f"The {RANKS_SHOWN} of {len(ranks)} ranks that wait least and most"
    return title, [ranks[place] for place in shown]


def stragglers(words: Words) -> RenderableType:
    """Who holds the others back, and why."""
    rows = [[str(row["rank"]), ms(row["held_ms"]), str(row["why"])] for row in words["stragglers"]]
    return table("Who holds the others back", ["rank", "held ms", "<why…"], rows)


def _collectives(words: Words, top: int) -> RenderableType:
    columns: dict[str, Callable[[Words], str]] = {
        "<collective": lambda row: str(row["kind"]),
        "size": lambda row: bytes_(row["nbytes"]),
        "count": lambda row: str(row["count"]),
        "transfer ms": lambda row: ms(row["transfer_ms"]),
        "all of them": lambda row: ms(row["total_transfer_ms"]),
        "waits of all ranks": lambda row: ms(row["wait_ms"]),
    }
    title = "Communication: ranks wait for the last one, then the transfer begins"
    if len(words["step_ms"]) == 1:
        title = "Communication"
        del columns["waits of all ranks"]
    rows = sorted(words["collectives"], key=lambda row: -(row["total_transfer_ms"] + row["wait_ms"]))
    return table(title, list(columns), _cells(columns, rows), top)


def critical_path(words: Words, top: int, with_rank: bool = True) -> RenderableType:
    """What the critical path goes through, the longest first; with the rank of each piece, where there are several."""
    columns: dict[str, Callable[[Words], str]] = {
        "share": lambda part: percent(part["share"]),
        "ms": lambda part: ms(part["ms"]),
        "rank": lambda part: "all" if part["rank"] is None else str(part["rank"]),
        "<what": lambda part: str(part["what"]),
        "<name…": lambda part: short(part["name"]),
    }
    if not with_rank:
        del columns["rank"]
    title = "Critical path: only what is on it shortens the step"
    return table(title, list(columns), _cells(columns, words["critical_path"]), top)


def _overheads(words: Words) -> RenderableType:
    title = "Host time, mean over ranks" if len(words["step_ms"]) > 1 else "Host time"
    depth = words["queue_depth"]
    if depth and depth["max"]:
        title += f"; {depth['mean']:.1f} kernels queued on average, {depth['max']:.0f} at most"
    meanings = OVERHEADS if words["device_span_ms"] else WITHOUT_LAUNCHES
    rows = []
    for kind, meaning in meanings.items():
        spent = words["overheads"][kind]
        numbers = [ms(spent["ms"]), f"{spent['count']:.0f}", ms(spent["mean_us"]), percent(spent["share"])]
        rows.append([kind, meaning, *numbers, bar(spent["share"])])
    return table(title, ["<", "<overhead", "ms", "count", "mean us", "share", "<"], rows)


def time_by(what: str, rows: list[Words], top: int, on_device: bool) -> RenderableType:
    """A table of time by op, by kernel family or by something else, with the share of each."""
    columns: dict[str, Callable[[Words], str]] = {
        f"<{what}…": lambda row: short(row["name"]) or "(none)",
        "device ms": lambda row: ms(row["device_ms"]),
        "host ms": lambda row: ms(row["host_ms"]),
        "count": lambda row: f"{row['count']:.0f}",
        "share": lambda row: percent(row["share"]),
        "<": lambda row: bar(row["share"]),
    }
    if not on_device:
        del columns["device ms"]
    return table(f"Time by {what}", list(columns), _cells(columns, rows), top)


def _cells(columns: dict[str, Callable[[Any], str]], rows: Iterable[Any]) -> list[list[str]]:
    return [[cell(row) for cell in columns.values()] for row in rows]
