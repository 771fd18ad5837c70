"""The page of two forecasts held against each other: what changed, by how much, and where."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.forecast.difference import compared
from foretrace.forecast.forecast import Forecast
from foretrace.report.changes import LEAST_MS
from foretrace.report.numbers import UNKNOWN, bytes_, ms, percent, signed
from foretrace.report.pages import charts
from foretrace.report.pages.forecast import marks
from foretrace.report.pages.lanes import timeline
from foretrace.report.pages.sheet import Chart, Sheet

SAME = 0.0005
"""Share below which a change is none."""

SAMPLE = "for each sample"
TOLD = (
    ("step", "step_ms", ms),
    ("from step to step", "step_ms_back_to_back", ms),
    ("samples in a step", "samples", "{:,}".format),
    (SAMPLE, "sample_us", lambda us: f"{ms(us)} µs"),
    ("device active", "device_active_ms", ms),
    ("device idle", "device_idle_ms", ms),
    ("exposed communication", "exposed_communication_ms", ms),
    ("ranks", "world", "{:,}".format),
    ("kernels", "kernels", "{:,}".format),
    ("peak memory", "peak_memory_bytes", bytes_),
    ("of peak arithmetic (MFU)", "mfu", percent),
)
BETTER_HIGHER = ("mfu",)
NEITHER = ("kernels", "world", "samples")
"""Of which more is neither better nor worse."""


ONLY_WITH_OTHER = {"world": "world", "samples": "samples", "sample_us": "samples"}
"""Figures that need no line where both have the same of something."""


class Line(NamedTuple):
    """One figure of both forecasts."""

    name: str
    before: str
    after: str
    change: str
    verdict: str
    """``good``, ``bad``, or nothing."""


def comparison_page(before: Forecast, after: Forecast, names: tuple[str, str] = ("before", "after")) -> Sheet:
    """The page: ``names`` tell the two apart.

    >>> page = comparison_page(Forecast(platform="h200", step_ms=10.0), Forecast(platform="h200", step_ms=5.0))
    >>> "-50 %" in page.html()
    True
    """
    pair, lines = (before, after), list(_lines(before, after))
    rows = sorted(compared(before.by_op, after.by_op), key=lambda row: -abs(row["change_ms"]))
    return Sheet(
        "comparison.html",
        f"{names[0]} and {names[1]}",
        {
            "distribution": _distributions(pair, names),
            "by_op": charts.changes(rows),
            "by_family": charts.changes(compared(before.by_family, after.by_family)),
            "by_phase": charts.changes(compared(before.by_phase, after.by_phase)),
            "timeline": _timelines(pair, names),
        },
        {
            "pair": pair,
            "of": _of_both(pair, names),
            "names": names,
            "lines": lines,
            "each": next(({**line._asdict(), "count": _counted(pair)} for line in lines if line.name == SAMPLE), None),
            "notes": list(dict.fromkeys([*before.notes, *after.notes])),
            "rows": [{**row, "change": moved(row["change_ms"])} for row in rows],
        },
    )


def _of_both(pair: tuple[Forecast, Forecast], names: tuple[str, str]) -> str:
    """What both are forecasts of, where their names do not say it."""
    source, other = (forecast.source for forecast in pair)
    return source if source == other and Path(source).name not in names else ""


def _counted(pair: tuple[Forecast, Forecast]) -> str:
    """How many samples the steps have."""
    return " → ".join(f"{forecast.samples:,}" for forecast in pair)


def moved(change_ms: float) -> str:
    """By how many milliseconds.

    >>> moved(1.5), moved(-0.25), moved(-0.00001)
    ('+1.50', '-0.250', '0')
    """
    return "0" if abs(change_ms) < LEAST_MS else f"{'+' if change_ms > 0 else ''}{ms(change_ms)}"


def _lines(before: Forecast, after: Forecast) -> Iterator[Line]:
    for name, word, told in TOLD:
        old, new = getattr(before, word), getattr(after, word)
        if old is None or new is None or not (old or new) or _is_needless(word, before, after):
            continue
        share = new / old - 1 if old else 0.0
        verdict = ""
        if abs(share) > SAME and word not in NEITHER:
            verdict = "good" if (share < 0) != (word in BETTER_HIGHER) else "bad"
        unit = " ms" if told is ms else ""
        yield Line(name, told(old) + unit, told(new) + unit, signed(share) if old else UNKNOWN, verdict)


def _is_needless(word: str, before: Forecast, after: Forecast) -> bool:
    counted = ONLY_WITH_OTHER.get(word)
    return counted is not None and getattr(before, counted) == getattr(after, counted)


def _distributions(pair: tuple[Forecast, Forecast], names: tuple[str, str]) -> Chart | None:
    found: list[Any] = []
    for forecast, name in zip(pair, names):
        if forecast.workings is not None:
            middle = next(mark for mark in marks(forecast) if mark["name"] == "step")
            found.append((name, forecast.workings.draws_ms, [{**middle, "name": f"{ms(forecast.step_ms)} ms"}]))
    return charts.distribution(found)


def _timelines(pair: tuple[Forecast, Forecast], names: tuple[str, str]) -> Chart | None:
    drawn = [timeline(one.workings, name) for one, name in zip(pair, names) if one.workings is not None]
    return {"kind": "timeline", "timelines": drawn} if drawn else None
