"""What a forecast says of several ranks: each one's time, who waits for whom, and how a job grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.numbers import listed, ms, percent, plural, spread
from foretrace.report.tables import bar, lines, notes, table

Words = dict[str, Any]

RANKS_SHOWN = 16


def is_job(words: Words) -> bool:
    """Whether a forecast is of several ranks that were simulated together."""
    return len(words["ranks"]) > 1


def job_rows(words: Words) -> Iterator[tuple[str, str, str]]:
    """What a reader wants to know first of a job: a name, a figure, what it means."""
    waits = words["wait_ms"].values()
    yield "waits", spread(waits), f"a rank, for others{_held_by(words)}"
    by_rank = sorted(words["critical_path_ranks"].items(), key=lambda item: -item[1])
    if by_rank:
        total = sum(part["ms"] for part in words["critical_path"])
        most = ", ".join(f"rank {rank} {percent(part / total)}" for rank, part in by_rank[:3])
        yield "path", f"{ms(total)} ms", f"{path_kinds(words)}; {most}"


def path_kinds(words: Words) -> str:
    """What the critical path goes through, the longest first."""
    kinds: dict[str, float] = {}
    for part in words["critical_path"]:
        kind = "host" if part["what"] in words["overheads"] else part["what"]
        kinds[kind] = kinds.get(kind, 0.0) + part["share"]
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{what} {percent(share)}" for what, share in largest if share > 0.005)


def _held_by(words: Words) -> str:
    ranks = sorted(row["rank"] for row in words["stragglers"])
    if not ranks:
        return ""
    return f"; {'rank' if len(ranks) == 1 else 'ranks'} {listed(ranks)} hold{'s' if len(ranks) == 1 else ''} them back"


def job_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """The tables of a job."""
    yield _ranks(words["ranks"])
    if words["stragglers"]:
        rows = [[str(row["rank"]), ms(row["held_ms"]), str(row["why"])] for row in words["stragglers"]]
        yield table("Who holds the others back", ["rank", "held ms", "<why…"], rows)
    if words["waits_for"]:
        rows = [
            [str(row["rank"]), str(row["waits_for"]), ms(row["ms"]), str(row["count"])] for row in words["waits_for"]
        ]
        yield table("Who waits for whom", ["rank", "waits for", "ms", "times"], rows, top)


def _ranks(ranks: list[Words]) -> RenderableType:
    """A line a rank; of many, those that wait least and most."""
    shown, title = ranks, "Ranks"
    if len(ranks) > RANKS_SHOWN:
        title = f"The {RANKS_SHOWN} of {len(ranks)} ranks that wait least and most"
        by_wait = sorted(ranks, key=lambda row: row["wait_ms"])
        half = RANKS_SHOWN // 2
        shown = sorted(by_wait[:half] + by_wait[-half:], key=lambda row: row["rank"])
    columns = {
        "rank": "rank", "step ms": "step_ms", "device span": "device_span_ms", "active": "device_active_ms",
        "waits": "wait_ms", "exposed": "exposed_communication_ms", "bubble": "bubble_ms", "host": "host_ms",
    }  # fmt: skip
    rows = [[named(row), *(ms(row[word]) for word in list(columns.values())[1:])] for row in shown]
    return table(title, list(columns), rows)


def named(row: Words) -> str:
    """Which rank a row is of, and how many it stands for."""
    alike = row["stands_for"] - 1
    return f"{row['rank']} and {alike} more" if alike else str(row["rank"])


def scaling_blocks(words: Words, top: int | None) -> Iterator[RenderableType]:
    """A scaling curve as a table of at most ``top`` rows, all where it is None, with a bar for each step."""
    rows = words["scaling"]
    smallest, largest = rows[0], rows[-1]
    said = f"{percent(largest['efficiency'])} of the speed of {plural(smallest['world'], 'rank')}"
    title = f"{words['source'] or 'the step'} on {words['platform']}: {smallest['world']} to {largest['world']} ranks"
    yield lines(title, [("step", f"{ms(largest['step_ms'])} ms", f"on {plural(largest['world'], 'rank')}: {said}")])
    longest = max(row["step_ms"] for row in rows) or 1.0
    cells = [
        [
            f"{row['world']:,}", ms(row["step_ms"]), f"{ms(row['low_ms'])} – {ms(row['high_ms'])}",
            ms(row["exposed_communication_ms"]), ms(row["hidden_communication_ms"]), percent(row["efficiency"]),
            bar(row["step_ms"] / longest), row["fabric"] or "",
        ]
        for row in rows
    ]  # fmt: skip
    columns = ["ranks", "step ms", "range", "exposed", "hidden", "efficiency", "<", "<fabric…"]
    yield table("Scaling", columns, cells, top)
    if words["notes"]:
        yield notes(words["notes"])
