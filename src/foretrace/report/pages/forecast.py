"""The page of a forecast, and beside it, where the job was measured as well, what it took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from foretrace.forecast.check import Check
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.observation import Observation
from foretrace.forecast.workings import Memory
from foretrace.report.check import off
from foretrace.report.forecast import CAUSES, headline_rows, where
from foretrace.report.job import named
from foretrace.report.numbers import bytes_, ms
from foretrace.report.pages import charts
from foretrace.report.pages.lanes import timeline
from foretrace.report.pages.roofline import roofline
from foretrace.report.pages.sheet import Chart, Sheet
from foretrace.report.pages.sources import sources
from foretrace.report.sections import WITHOUT_LAUNCHES

ROWS = 300
"""Rows that a table holds; a click shows all of them."""

RANKS = 64
"""Ranks that one chart shows."""

Measured = tuple[Observation, Check | None]
"""What a recording or a trace shows of the step, and how far the forecast is off where plain steps were timed."""


def forecast_page(forecast: Forecast, measured: Measured | None = None) -> Sheet:
    """The page.

    >>> "train.py" in forecast_page(Forecast(source="train.py", platform="h200")).html()
    True
    """
    words = forecast.to_dict()
    title = f"{forecast.source or 'the step'} on {where(words)}"
    seen, check = measured or (None, None)
    (_, step, meaning), *facts = headline_rows(words)
    return Sheet(
        "forecast.html",
        title,
        {
            "distribution": _distribution(forecast, check),
            "ranks": _ranks(words),
            "parts": charts.parts(words),
            "views": charts.views(words),
            "timeline": _timelines(forecast, seen),
            "misses": _misses(check),
            "roofline": roofline(forecast.workings) if forecast.workings else None,
            "memory": _memory(forecast),
            "sources": sources(forecast.workings) if forecast.workings else None,
        },
        {
            "words": words,
            "where": where(words),
            "step": step.removesuffix(" ms"),
            "meaning": meaning,
            "facts": facts,
            "causes": CAUSES if words["kernels"] else WITHOUT_LAUNCHES,
            "rows": ROWS,
            "compared": list(_compared(check)) if check else [],
            "check": check,
            "slowdown": seen.slowdown if seen else 1.0,
        },
    )


def measured_there(forecast: Forecast) -> bool:
    """Whether the job was measured on the device that it is predicted on."""
    made_of = forecast.workings
    if made_of is None or made_of.job is None or made_of.device is None:
        return False
    on_host = made_of.device.kind == "cpu"
    return all(graph.device == ("" if on_host else made_of.device.matches) for graph in made_of.job.graphs)


def marks(forecast: Forecast) -> list[dict[str, Any]]:
    """The step and the ends of its range, for the distribution."""
    return [
        {"name": "10 %", "ms": forecast.low_ms, "dashed": True},
        {"name": "step", "ms": forecast.step_ms, "dashed": False},
        {"name": "90 %", "ms": forecast.high_ms, "dashed": True},
    ]


def _ranks(words: dict[str, Any]) -> Chart | None:
    rows = []
    for row in words["ranks"][:RANKS]:
        exposed, waits = row["exposed_communication_ms"], row["wait_ms"]
        about = f"step {ms(row['step_ms'])} ms, bubble {ms(row['bubble_ms'])} ms"
        idle = words["step_ms"] - row["device_active_ms"]
        rows.append(charts.RankRow(named(row), row["device_active_ms"], exposed, min(waits, exposed), idle, about))
    return charts.ranks(rows)


def _distribution(forecast: Forecast, check: Check | None) -> Chart | None:
    if forecast.workings is None:
        return None
    measured = [{"name": "measured", "ms": check.step_ms[1], "dashed": False}] if check else []
    return charts.distribution([("forecast", forecast.workings.draws_ms, [*marks(forecast), *measured])])


def _timelines(forecast: Forecast, seen: Observation | None) -> Chart | None:
    if forecast.workings is None:
        return None
    drawn = [timeline(forecast.workings, "predicted")]
    if seen is not None and seen.workings is not None and np.isfinite(seen.workings.graphs[0].ops.start).any():
        drawn.append(timeline(seen.workings, "measured" if measured_there(forecast) else "measured elsewhere"))
    return {"kind": "timeline", "timelines": drawn}


def _memory(forecast: Forecast) -> Chart | None:
    if forecast.workings is None:
        return None
    curves = forecast.workings.memory()
    peak = max((int(curve.nbytes.max()) for _, curve in curves), default=0)
    # What no storage holds, as the matrix library's workspace, is held all the time.
    besides = max((forecast.peak_memory_bytes or peak) - peak, 0)
    return charts.memory(
        [(rank, Memory(us, nbytes + besides)) for rank, (us, nbytes) in curves], 0.0, forecast.memory_bytes
    )


def _misses(check: Check | None) -> Chart | None:
    """Misses as changes from what was measured to what was predicted."""
    if check is None:
        return None
    turned = ("device_ms", "host_ms", "count")
    rows = [
        {"name": row["name"], "change_ms": row["miss_ms"], **{word: list(row[word])[::-1] for word in turned}}
        for row in check.by_op
    ]
    return charts.changes(rows, verdict=False)


def _compared(check: Check) -> Iterator[tuple[str, str, str, str]]:
    """Name, predicted, measured, by how much it is off."""
    for name, pair in (
        ("step", check.step_ms),
        ("from step to step", check.step_ms_back_to_back),
        ("device active", check.device_active_ms),
    ):
        if pair:
            yield name, f"{ms(pair[0])} ms", f"{ms(pair[1])} ms", off(pair)
    if check.peak_memory_bytes:
        predicted, measured = check.peak_memory_bytes
        yield "peak memory", bytes_(predicted), bytes_(measured), off(check.peak_memory_bytes)
