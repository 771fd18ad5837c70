"""Results in a notebook: a few facts, a bar and a short table, in HTML without scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from foretrace.analysis.report import StepReport
from foretrace.errors import ForetraceError
from foretrace.report.formatting import bytes_, ms, percent, plural
from foretrace.report.step import step_facts, step_title
from foretrace.report.terminal import Fact

if TYPE_CHECKING:
    from foretrace.prediction.scaling import Scaling
    from foretrace.sharding.plan import Sharding
    from foretrace.whatif.points import Sweep
    from foretrace.whatif.what_if import WhatIf

T = TypeVar("T")

TABLE_ROWS = 5
"""Rows of a table; a page has all of them."""
CURVE_ROWS = 12
"""Rows of a curve or a front, which is of use as a whole."""


@dataclass
class Summary:
    """The summary of a result that a notebook shows."""

    title: str
    facts: list[Fact]
    bar: list[dict[str, Any]] = field(default_factory=list)
    """Parts of the step: name and milliseconds."""
    about: str = ""
    """Title of the table."""
    columns: tuple[str, ...] = ()
    """Of the table: the last one holds names, the others figures."""
    table: list[list[str]] = field(default_factory=list)


def as_html(result: object) -> str:
    """What a notebook shows of a step report, a what-if, a sweep, a scaling curve or a sharding plan.

    HTML without scripts, in which names are always text.

    >>> "5.60 ms" in as_html(StepReport(source="train.py", platform="h200", step_ms=5.6, coverage={"model": 1.0}))
    True
    """
    from foretrace.report.pages.page import colour, fragment

    kind = next((kind.__name__ for kind in type(result).__mro__ if kind.__name__ in SUMMARIES), None)
    if kind is None:
        raise ForetraceError(f"a notebook can't show a {type(result).__name__}", f"Give a {', a '.join(SUMMARIES)}.")
    shown = SUMMARIES[kind](result)
    total = sum(piece["ms"] for piece in shown.bar) or 1.0
    pieces = [{**piece, "share": piece["ms"] / total, "colour": colour(piece["name"])} for piece in shown.bar]
    return fragment("summary.html", shown=shown, bar=pieces)


def _step(report: StepReport) -> Summary:
    if not report.predicted:
        return Summary(step_title(report), step_facts(report))
    from foretrace.report.pages.charts import parts

    return Summary(
        step_title(report),
        step_facts(report),
        (parts(report) or {"parts": []})["parts"],
        "Look at these first",
        ("share", "ms", "mostly", "phase", "op"),
        [[percent(op.share), ms(op.ms), op.mostly, op.phase, op.name] for op in report.look_at[:TABLE_ROWS]],
    )


def _whatif(found: WhatIf) -> Summary:
    from foretrace.report.comparisons import whatif_facts, whatif_title
    from foretrace.report.formatting import signed_ms

    changed = sorted(found.difference.by_op, key=lambda row: -abs(row.change_ms))[:TABLE_ROWS]
    return Summary(
        whatif_title(found),
        list(whatif_facts(found)),
        about="What changed most, device and host time together",
        columns=("ms", "op"),
        table=[[signed_ms(row.change_ms), row.name] for row in changed],
    )


def _sweep(sweep: Sweep) -> Summary:
    from foretrace.report.comparisons import made_and_left, point_label, sweep_facts

    made, _ = made_and_left(sweep)
    front = [point for point in made if point.front]
    return Summary(
        f"{sweep.source or 'the step'}: {plural(len(made), 'point')}",
        list(sweep_facts(sweep)),
        about="The front: no other point is better in everything",
        columns=("step ms", "us a sample", "memory", "point"),
        table=[
            [ms(point.step_ms), ms(point.sample_us), bytes_(point.memory_bytes), point_label(point)]
            for point in front[:CURVE_ROWS]
        ],
    )


def _scaling(curve: Scaling) -> Summary:
    from foretrace.report.comparisons import scaling_facts, scaling_title

    return Summary(
        scaling_title(curve),
        scaling_facts(curve),
        about="As the job grows",
        columns=("ranks", "step ms", "efficiency", "exposed ms", "fabric"),
        table=[
            [f"{row.world:,}", ms(row.step_ms), percent(row.efficiency),
             ms(row.exposed_communication_ms), row.fabric or ""]
            for row in _evenly(curve.rows, CURVE_ROWS)
        ],
    )  # fmt: skip


def _sharding(sharding: Sharding) -> Summary:
    from foretrace.report.sharding import plan_facts, plan_title

    plan = sharding.report()
    slowest = sorted(plan.ranks, key=lambda rank: -rank.lookup_ms)[:TABLE_ROWS]
    return Summary(
        plan_title(plan),
        list(plan_facts(plan)),
        about="The slowest ranks",
        columns=("lookups ms", "memory", "tables", "rank"),
        table=[[ms(rank.lookup_ms), bytes_(rank.memory_bytes), f"{rank.tables:,}", f"{rank.rank}"] for rank in slowest],
    )


def _evenly(rows: Sequence[T], most: int) -> Sequence[T]:
    """At most so many rows, evenly spaced, the first and the last among them.

    >>> _evenly(range(9), 3)
    [0, 4, 8]
    """
    if len(rows) <= most:
        return rows
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]


SUMMARIES: dict[str, Callable[[Any], Summary]] = {
    "StepReport": _step,
    "WhatIf": _whatif,
    "Sweep": _sweep,
    "Scaling": _scaling,
    "Sharding": _sharding,
}
"""By the name of the result's class, which need not be loaded for the others."""
