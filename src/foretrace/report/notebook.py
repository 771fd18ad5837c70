"""What was found, in a notebook: a few lines, a bar or a short table, with no script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.report.forecast import headline_rows, where
from foretrace.report.headline import observed_rows, which_step
from foretrace.report.job import scaling_rows, scaling_title
from foretrace.report.json import Document
from foretrace.report.numbers import bytes_, ms, percent, plural
from foretrace.report.pages.charts import parts
from foretrace.report.pages.comparison import moved
from foretrace.report.pages.sheet import fragment, painted
from foretrace.report.sharding import sharding_rows
from foretrace.report.sweep import made_and_left, named, sweep_rows
from foretrace.report.whatif import whatif_rows

Words = dict[str, Any]

SHOWN = 5
"""Rows of a table; who wants all of them writes a page."""
SEVERAL = 12
"""Rows of a curve, which is of use as a whole."""


@dataclass
class Summary:
    """What a notebook shows."""

    title: str
    rows: list[tuple[str, str, str]]
    """A name, a figure, what it means."""
    bar: list[Words] = field(default_factory=list)
    about: str = ""
    """What the table is of."""
    columns: tuple[str, ...] = ()
    """Of the table: names come last, everything else is a figure."""
    table: list[list[str]] = field(default_factory=list)


def as_html(what: Document) -> str:
    """What a notebook shows of a forecast, an observation, a what-if, a sweep, a scaling curve or a sharding plan.

    HTML without scripts, in which names are always text.

    >>> from foretrace.forecast.forecast import Forecast
    >>> "5.60 ms" in as_html(Forecast(source="train.py", platform="h200", step_ms=5.6, coverage={"model": 1.0}))
    True
    """
    kind = next((kind.__name__ for kind in type(what).__mro__ if kind.__name__ in SUMMARIES), None)
    if kind is None:
        raise ForetraceError(f"nobody knows how to show a {type(what).__name__}", f"Give a {', a '.join(SUMMARIES)}.")
    shown = SUMMARIES[kind](what.to_dict())
    total = sum(piece["ms"] for piece in shown.bar) or 1.0
    pieces = [{**piece, "share": piece["ms"] / total, "colour": painted(piece["name"])} for piece in shown.bar]
    return fragment("summary.html", shown=shown, bar=pieces)


def _forecast(words: Words) -> Summary:
    return Summary(
        f"{words['source'] or 'the step'} on {where(words)}",
        list(headline_rows(words)),
        (parts(words) or {"parts": []})["parts"],
        "Look at these first",
        ("share", "ms", "mostly", "phase", "op"),
        [
            [percent(row["share"]), ms(row["ms"]), row["mostly"], row["phase"], row["name"]]
            for row in words["look_at"][:SHOWN]
        ],
    )


def _observation(words: Words) -> Summary:
    return Summary(f"{words['source'] or 'the step'}: {which_step(words)}", list(observed_rows(words)))


def _whatif(words: Words) -> Summary:
    changed = sorted(words["difference"]["by_op"], key=lambda row: -abs(row["change_ms"]))[:SHOWN]
    return Summary(
        f"{words['source'] or 'the step'} on {words['platform']}, with {', '.join(words['changes'])}",
        list(whatif_rows(words)),
        about="What changed most, device and host time together",
        columns=("ms", "op"),
        table=[[moved(row["change_ms"]), row["name"]] for row in changed],
    )


def _sweep(words: Words) -> Summary:
    made, _ = made_and_left(words)
    front = [point for point in made if point["front"]]
    return Summary(
        f"{words['source'] or 'the step'}: {plural(len(made), 'point')}",
        list(sweep_rows(words)),
        about="The front: no other point is better in everything",
        columns=("step ms", "us a sample", "memory", "point"),
        table=[
            [ms(point["step_ms"]), ms(point["sample_us"]), bytes_(point["memory_bytes"]), named(point)]
            for point in front[:SEVERAL]
        ],
    )


def _scaling(words: Words) -> Summary:
    return Summary(
        scaling_title(words),
        scaling_rows(words),
        about="As the job grows",
        columns=("ranks", "step ms", "efficiency", "exposed ms", "fabric"),
        table=[
            [f"{row['world']:,}", ms(row["step_ms"]), percent(row["efficiency"]),
             ms(row["exposed_communication_ms"]), row["fabric"] or ""]
            for row in _spread(words["scaling"], SEVERAL)
        ],
    )  # fmt: skip


def _sharding(words: Words) -> Summary:
    of = f"{plural(words['tables'], 'table')} on {plural(words['world'], 'rank')} of {words['platform']}"
    slowest = sorted(words["ranks"], key=lambda rank: -float(rank["lookup_ms"]))[:SHOWN]
    return Summary(
        f"{words['source']}: {of}",
        list(sharding_rows(words)),
        about="The slowest ranks",
        columns=("lookups ms", "memory", "tables", "rank"),
        table=[
            [ms(rank["lookup_ms"]), bytes_(rank["memory_bytes"]), f"{rank['tables']:,}", f"{rank['rank']}"]
            for rank in slowest
        ],
    )


def _spread(rows: list[Words], most: int) -> Iterable[Words]:
    """So many of them, the first and the last among them.

    >>> [row["n"] for row in _spread([{"n": n} for n in range(9)], 3)]
    [0, 4, 8]
    """
    if len(rows) <= most:
        return rows
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]


SUMMARIES: dict[str, Callable[[Words], Summary]] = {
    "Forecast": _forecast,
    "Observation": _observation,
    "WhatIf": _whatif,
    "Sweep": _sweep,
    "Scaling": _scaling,
    "Sharding": _sharding,
}
"""By the name of what is shown: its class lives in a room that need not be opened for the others."""
