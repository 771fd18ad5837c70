"""What a forecast says of several ranks: each one's time, who waits for whom, and how a job grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.numbers import listed, ms, percent, plural, spread
from foretrace.report.sections import some_ranks, stragglers
from foretrace.report.tables import bar, lines, notes, table

Words = dict[str, Any]
OF_DEVICES = ("device_span_ms", "device_active_ms", "bubble_ms")


def is_job(words: Words) -> bool:
    """Whether a forecast is of several ranks that were simulated together."""
    return len(words["ranks"]) > 1


def job_rows(words: Words) -> Iterator[tuple[str, str, str]]:
    """What a reader wants to know first of a job: a name, a figure, what it means."""
    waits = words["wait_ms"].values()
    yield "waits", spread(waits), "; ".join(filter(None, ["a rank, for others", holding_back(words, "them")]))
    if words["critical_path_ranks"]:
        total = sum(part["ms"] for part in words["critical_path"])
        yield "path", f"{ms(total)} ms", f"{path_kinds(words)}; {path_ranks(words, total)}"


def path_kinds(words: Words) -> str:
    """What the critical path goes through, the longest first."""
    kinds: dict[str, float] = {}
    for part in words["critical_path"]:
        kind = "host" if part["what"] in words["overheads"] else part["what"]
        kinds[kind] = kinds.get(kind, 0.0) + part["share"]
    largest = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{what} {percent(share)}" for what, share in largest if share > 0.005)


def path_ranks(words: Words, total: float) -> str:
    """On which ranks the critical path lies, of so many milliseconds.

    >>> path_ranks({"critical_path_ranks": {0: 6.0, 5: 2.0}}, 8.0)
    '75 % on rank 0, 25 % on rank 5'
    """
    longest = sorted(words["critical_path_ranks"].items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{percent(part / total)} on rank {rank}" for rank, part in longest)


def holding_back(words: Words, whom: str) -> str:
    """Which ranks hold the others back; nothing where none does.

    >>> holding_back({"stragglers": [{"rank": 6}, {"rank": 0}]}, "them")
    'ranks 0 and 6 hold them back'
    """
    ranks = sorted(row["rank"] for row in words["stragglers"])
    if not ranks:
        return ""
    return f"rank {ranks[0]} holds {whom} back" if len(ranks) == 1 else f"ranks {listed(ranks)} hold {whom} back"


def job_blocks(words: Words, top: int) -> Iterator[RenderableType]:
    """The tables of a job."""
    yield _ranks(words["ranks"])
    if words["stragglers"]:
        yield stragglers(words)
    if words["waits_for"]:
        rows = [
            [str(row["rank"]), str(row["waits_for"]), ms(row["ms"]), str(row["count"])] for row in words["waits_for"]
        ]
        yield table("Who waits for whom", ["rank", "waits for", "ms", "times"], rows, top)


def _ranks(ranks: list[Words]) -> RenderableType:
    """A line a rank; of many, those that wait least and most."""
    title, shown = some_ranks(ranks, lambda row: float(row["wait_ms"]))
    columns = {
        "rank": "rank", "step ms": "step_ms", "device span": "device_span_ms", "active": "device_active_ms",
        "waits": "wait_ms", "exposed": "exposed_communication_ms", "bubble": "bubble_ms", "host": "host_ms",
    }  # fmt: skip
    if not any(row["device_span_ms"] for row in shown):  # all of it on the host
        columns = {name: word for name, word in columns.items() if word not in OF_DEVICES}
    rows = [[named(row), *(ms(row[word]) for word in list(columns.values())[1:])] for row in shown]
    return table(title, list(columns), rows)


def named(row: Words) -> str:
    """Which rank a row is of, and how many it stands for.

    >>> named({"rank": 0, "stands_for": 8})
    '0 and 7 more'
    """
    alike = row["stands_for"] - 1
    return f"{row['rank']} and {alike} more" if alike else str(row["rank"])


def scaling_title(words: Words) -> str:
    """What a curve is of."""
    first, last = (f"{words['scaling'][place]['world']:,}" for place in (0, -1))
    return f"{words['source'] or 'the step'} on {words['platform']}: {first} to {last} ranks"


def scaling_rows(words: Words) -> list[tuple[str, str, str]]:
    """What a reader wants to know first: the largest job, beside the smallest.

    >>> one = {"world": 1, "step_ms": 4.0, "efficiency": 1.0}
    >>> scaling_rows({"scaling": [one, {"world": 8, "step_ms": 5.0, "efficiency": 0.8, "fabric": "nvlink"}]})
    [('step', '5.00 ms', 'on 8 ranks: 80 % of the speed of 1 rank')]
    """
    largest = words["scaling"][-1]
    return [("step", f"{ms(largest['step_ms'])} ms", f"on {plural(largest['world'], 'rank')}: {scaling_speed(words)}")]


def scaling_speed(words: Words) -> str:
    """How fast a rank of the largest job is, against one of the smallest; what no fabric joins exchanges nothing.

    >>> one = {"world": 1, "efficiency": 1.0, "fabric": None}
    >>> scaling_speed({"scaling": [one, {**one, "world": 8}]})
    '100 % of the speed of 1 rank, as ranks exchange nothing'
    """
    smallest, largest = words["scaling"][0], words["scaling"][-1]
    alone = ", as ranks exchange nothing" if largest["fabric"] is None and largest["world"] > 1 else ""
    return f"{percent(largest['efficiency'])} of the speed of {plural(smallest['world'], 'rank')}{alone}"


def scaling_blocks(words: Words, top: int | None) -> Iterator[RenderableType]:
    """A scaling curve as a table of at most ``top`` rows, all where it is None, with a bar for each step."""
    rows = words["scaling"]
    yield lines(scaling_title(words), scaling_rows(words))
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
