"""Pages about several steps: two predictions compared, a scaling curve, a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from foretrace.analysis.compare import compare_steps
from foretrace.analysis.report import StepReport, plain
from foretrace.report.comparisons import change_name, made_and_left, point_label, reasons, scaling_speed
from foretrace.report.formatting import UNKNOWN, bytes_, figure, ms, percent, plural, signed, signed_ms
from foretrace.report.pages import charts
from foretrace.report.pages.page import Chart, Page
from foretrace.report.pages.step import range_marks
from foretrace.report.pages.timeline import timelines
from foretrace.report.step import COVERAGE

if TYPE_CHECKING:
    from foretrace.prediction.scaling import Scaling
    from foretrace.whatif.points import Point, Sweep

Pair = tuple[StepReport, StepReport]

SAME = 0.01
"""Relative change below which a figure is called neither better nor worse: no model is that good."""


class Figure(NamedTuple):
    """A figure of a step that two predictions are compared in."""

    name: str
    field: str
    shown: Callable[[Any], str]
    better: str = "lower"
    """``lower``, ``higher``, or nothing where neither is."""
    only_if_other: str = ""
    """Field in which the two must differ for the figure to be shown."""
    of_a_step: bool = False
    """Whether it grows with the samples of a step: then it is not judged where these differ."""


PER_SAMPLE = "for each sample"
FIGURES = (
    Figure("step", "step_ms", ms, of_a_step=True),
    Figure("back to back", "step_ms_back_to_back", ms, of_a_step=True),
    Figure("samples in a step", "samples", "{:,}".format, "", "samples"),
    Figure(PER_SAMPLE, "sample_us", lambda us: f"{ms(us)} µs", "lower", "samples"),
    Figure("device active", "device_active_ms", ms, of_a_step=True),
    Figure("device idle", "device_idle_ms", ms, of_a_step=True),
    Figure("exposed communication", "exposed_communication_ms", ms, of_a_step=True),
    Figure("ranks", "world", "{:,}".format, "", "world"),
    Figure("kernels", "kernels", "{:,}".format, ""),
    Figure("peak memory", "peak_memory_bytes", bytes_, of_a_step=True),
    Figure("of peak arithmetic (MFU)", "mfu", percent, "higher"),
)
POINTS_LISTED = 1000
"""Points of a sweep that the page lists."""
POINTS_DRAWN = 2000
"""Points that the plot holds, the fastest."""
MARGIN = 1.15
"""Factor by which the axis extends beyond the first and the last point."""


class Line(NamedTuple):
    """One figure of both predictions."""

    name: str
    before: str
    after: str
    change: str
    verdict: str
    """``good``, ``bad``, or nothing."""


def comparison_page(
    before: StepReport, after: StepReport, names: tuple[str, str] = ("before", "after"), notes: Sequence[str] = ()
) -> Page:
    """The page of two predictions; ``names`` distinguish the two, or else their platforms do; ``notes`` are about both.

    >>> page = comparison_page(StepReport(platform="h200", step_ms=10.0), StepReport(platform="h200", step_ms=5.0))
    >>> "-50 %" in page.html()
    True
    """
    names = _sides(before, after, names)
    pair, lines, difference = (before, after), list(_lines(before, after)), compare_steps(before, after)
    rows = sorted(difference.matched or difference.by_op, key=lambda row: -abs(row.change_ms))
    per_sample = next((line for line in lines if line.name == PER_SAMPLE), None)
    verdict = per_sample is None  # a step with more samples may take longer
    return Page(
        "comparison.html",
        f"{names[0]} and {names[1]}",
        {
            "distribution": _distributions(pair, names),
            "path": charts.changes(difference.critical_path, verdict),
            "idle": charts.changes(difference.idle, verdict),
            "communication": charts.changes(difference.communication, verdict),
            "by_op": charts.changes(rows, verdict),
            "by_family": charts.changes(difference.by_family, verdict),
            "by_phase": charts.changes(difference.by_phase, verdict),
            "timeline": timelines([(report.workings, name) for report, name in zip(pair, names)]),
        },
        {
            "pair": pair,
            "of": before.source if before.source == after.source and Path(before.source).name not in names else "",
            "names": names,
            "lines": lines,
            "per_sample": per_sample,
            "path_change": signed_ms(sum(row.change_ms for row in difference.critical_path)),
            "step_change": signed_ms(after.step_ms - before.step_ms),
            "samples": " → ".join(f"{report.samples:,}" for report in pair) if per_sample else "",
            "notes": list(dict.fromkeys([*notes, *before.notes, *after.notes])),
            "cautions": list(dict.fromkeys([*before.cautions, *after.cautions])),
            "rows": [(row, change_name(row), signed_ms(row.change_ms)) for row in rows],
        },
    )


def _sides(before: StepReport, after: StepReport, names: tuple[str, str]) -> tuple[str, str]:
    """Names that tell the two apart: those given, or their platforms, or their order.

    >>> one, other = StepReport(platform="h200"), StepReport(platform="a100")
    >>> _sides(one, other, ("run", "run")), _sides(one, one, ("run", "run"))
    (('h200', 'a100'), ('first', 'second'))
    """
    platforms = before.platform or "measured", after.platform or "measured"
    return next((pair for pair in (names, platforms) if pair[0] != pair[1]), ("first", "second"))


def _lines(before: StepReport, after: StepReport) -> Iterator[Line]:
    per_sample = None not in (before.samples, after.samples) and before.samples != after.samples
    for row in FIGURES:
        old, new = getattr(before, row.field), getattr(after, row.field)
        other = row.only_if_other
        same = bool(other) and getattr(before, other) == getattr(after, other)
        if old is None or new is None or not (old or new) or same:
            continue
        share = new / old - 1 if old else 0.0
        verdict = ""
        unit = " ms" if row.shown is ms else ""
        shown = row.shown(old) + unit, row.shown(new) + unit
        judged = row.better and abs(share) > SAME and shown[0] != shown[1]
        if judged and not (per_sample and row.of_a_step):
            verdict = "good" if (share < 0) == (row.better == "lower") else "bad"
        yield Line(row.name, *shown, signed(share) if old else UNKNOWN, verdict)
    known = _mostly(before), _mostly(after)
    if all(known) and known[0] != known[1]:
        yield Line("kernel times", *known, "", "")


def _mostly(report: StepReport) -> str:
    """How most of the device time is known: measured on one side and modelled on the other is to be said."""
    return COVERAGE[max(report.coverage, key=lambda how: report.coverage[how])] if any(report.coverage.values()) else ""


def _distributions(pair: Pair, names: tuple[str, str]) -> Chart | None:
    found: list[Any] = []
    for report, name in zip(pair, names):
        if report.workings is None:
            return None  # one alone would be taken for both
        middle = next(mark for mark in range_marks(report) if mark["name"] == "step")
        found.append((name, report.workings.samples_ms, [{**middle, "name": f"{ms(report.step_ms)} ms"}]))
    return charts.distribution(found)


def scaling_page(curve: Scaling) -> Page:
    """The page of a scaling curve.

    >>> from foretrace.prediction.scaling import scaling_curve
    >>> curve = scaling_curve([StepReport(world=1, step_ms=4.0), StepReport(world=2, step_ms=5.0)])
    >>> "80 % of the speed of 1 rank" in scaling_page(curve).html()
    True
    """
    smallest, largest = curve.rows[0], curve.rows[-1]
    return Page(
        "scaling.html",
        f"{curve.source or 'the step'} on {smallest.world} to {largest.world} ranks",
        {"scaling": {"kind": "scaling", "rows": plain(curve.rows)}},
        {
            "curve": curve,
            "step": ms(largest.step_ms),
            "on": plural(largest.world, "rank"),
            "speed": scaling_speed(curve),
        },
    )


def sweep_page(sweep: Sweep) -> Page:
    """The page of a sweep: every point by its time per sample, against its memory, its cost and its energy.

    >>> from foretrace.whatif.points import Point, Sweep
    >>> "batch=64 on h200" in sweep_page(Sweep("train.py", [Point(["batch=64"], "h200", step_ms=4.0)])).html()
    True
    """
    points, best = sweep.points, sweep.best
    made, left = made_and_left(sweep)
    return Page(
        "sweep.html",
        f"{sweep.source or 'the step'}: {plural(len(made), 'point')}",
        {"points": _sweep_plot(sweep)},
        {
            "sweep": sweep,
            "count": plural(len(made), "point"),
            "best": best and point_label(best),
            "limit": f"in {bytes_(sweep.memory_limit)}" if sweep.memory_limit else "in the device's memory",
            "settings": [change.rpartition("=")[0] for change in points[0].changes] if points else [],
            "rows": [
                (
                    point,
                    [change.rpartition("=")[2] for change in point.changes],
                    figure(point.sample_j),
                    figure(point.cost),
                )
                for point in made
            ],
            "ranks": any(point.ranks > 1 for point in points),
            "priced": _priced(points),
            "drawn": _drawn(points),
            "listed": POINTS_LISTED,
            "left": plural(len(left), "point"),
            "reasons": list(reasons(left)),
        },
    )


def _priced(points: list[Point]) -> bool:
    return any(point.cost is not None for point in points)


def _drawn(points: list[Point]) -> bool:
    return any(point.sample_j is not None for point in points)


def _sweep_plot(sweep: Sweep) -> Chart | None:
    """Points by time: per sample where batches are known, else per step."""
    known = [point for point in sweep.points if point.step_ms and point.memory_bytes is not None][:POINTS_DRAWN]
    if len(known) < 2:
        return None
    by_sample = all(point.sample_us for point in known)
    times = [(point.sample_us if by_sample else point.step_ms) or 0.0 for point in known]
    views = [{"title": "memory", "word": "memory_bytes", "unit": "bytes"}]
    if _priced(known):
        views.append({"title": "cost of a million samples", "word": "cost", "unit": "dollars"})
    if _drawn(known):
        views.append({"title": "energy of a sample", "word": "sample_j", "unit": "joules"})
    drawn = ("platform", "step_ms", "sample_us", "memory_bytes", "cost", "sample_j", "fits")
    best = sweep.best
    return {
        "kind": "sweep",
        "points": [
            {**{name: getattr(point, name) for name in drawn}, "name": point_label(point), "best": point is best}
            for point in known
        ],
        "views": views,
        "across": "sample_us" if by_sample else "step_ms",
        "across_name": "time of a sample" if by_sample else "time of a step",
        "across_unit": "µs" if by_sample else "ms",
        "from": min(times) / MARGIN,
        "to": max(times) * MARGIN,
        "limit": sweep.memory_limit,
        "left_out": max(len(sweep.points) - POINTS_DRAWN, 0),
    }
