"""The page of a step: measured, or predicted next to what was measured of the same job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from foretrace.analysis.compare import Check, TimeChange, check_prediction
from foretrace.analysis.measure import measure_step
from foretrace.analysis.report import StepReport
from foretrace.report.formatting import bytes_, ms, off, signed
from foretrace.report.pages import charts
from foretrace.report.pages.page import Chart, Page
from foretrace.report.pages.timeline import timelines
from foretrace.report.ranks import rank_label
from foretrace.report.step import CAUSES, WITHOUT_LAUNCHES, step_facts, step_title, where, which_step
from foretrace.report.terminal import Fact

TABLE_ROWS = 300
"""Rows that a table holds; a click shows all of them."""
MAX_RANKS_DRAWN = 64
"""Ranks that one chart shows."""

Measured = tuple[StepReport, Check | None]
"""A measured step, and how far a prediction of it is off where unprofiled steps were timed."""


def step_page(report: StepReport, measured: Measured | None = None) -> Page:
    """The page of a step, measured or predicted; with what was ``measured`` of the job that is predicted.

    >>> "train.py" in step_page(StepReport(source="train.py", platform="h200")).html()
    True
    """
    return _predicted_page(report, measured) if report.predicted else _measured_page(report)


def _predicted_page(report: StepReport, measured: Measured | None) -> Page:
    seen, check = measured or (None, None)
    workings = report.workings
    return Page(
        "prediction.html",
        step_title(report),
        {
            "distribution": _distribution(report, check),
            "ranks": _predicted_ranks(report),
            "parts": charts.parts(report),
            "views": charts.views(report),
            "timeline": _timelines(report, seen),
            "misses": _misses(check),
            "roofline": charts.roofline(workings) if workings else None,
            "memory": _predicted_memory(report),
            "sources": charts.sources(workings) if workings else None,
        },
        {
            **_shown(report, on_device=bool(report.kernels), baseline=_baseline(report, seen)),
            "where": where(report),
            "compared": list(_compared(check)) if check else [],
            "check": check,
            "profiling_overhead": seen.profiling_overhead if seen else 1.0,
        },
    )


def _measured_page(report: StepReport) -> Page:
    workings = report.workings
    graphs = workings.graphs if workings else []
    timed = any(np.isfinite(graph.ops.start).any() or len(graph.kernels) for graph in graphs)
    return Page(
        "measurement.html",
        report.source or "the step",
        {
            "ranks": _measured_ranks(report),
            "views": charts.views(report),
            "timeline": timelines([(workings, "measured")]) if timed else None,
            "roofline": charts.roofline(workings) if workings else None,
            "memory": _measured_memory(report),
        },
        {**_shown(report, on_device=bool(report.device_span_ms)), "which": which_step(report)},
    )


def _baseline(report: StepReport, seen: StepReport | None) -> list[Fact]:
    """The step as it was measured, and by how much the prediction differs; nothing where none was measured."""
    if seen is None or seen.workings is None or not seen.step_ms:
        return []
    unprofiled = seen.unprofiled.synced_ms if seen.unprofiled else None
    measured = unprofiled or seen.step_ms
    graphs = seen.workings.graphs
    devices = sorted({graph.device for graph in graphs if graph.device})
    if not any(len(graph.kernels) for graph in graphs):
        devices = ["its CPUs"]
    how = "without a profiler" if unprofiled else "profiled, which slows the host"
    there = f"on {', '.join(devices)}, " if devices else ""
    meaning = f"{there}{how}; predicted {signed(report.step_ms / measured - 1)}"
    return [("measured", f"{ms(measured)} ms", meaning)]


def _shown(report: StepReport, on_device: bool, baseline: list[Fact] | None = None) -> dict[str, Any]:
    """The values that the templates of both pages take."""
    (_, step, meaning), *facts = step_facts(report)
    return {
        "report": report,
        "step": step.removesuffix(" ms"),
        "meaning": meaning,
        "facts": [*(baseline or []), *facts],
        "causes": CAUSES if on_device else WITHOUT_LAUNCHES,
        "rows": TABLE_ROWS,
    }


def measured_with(report: StepReport) -> Measured | None:
    """What was measured of the job that was predicted; None for a sketch, of which nothing was.

    >>> measured_with(StepReport(platform="h200")) is None
    True
    """
    workings = report.workings
    if workings is None or workings.job is None:
        return None
    job = workings.job
    if not any(np.isfinite(graph.ops.start).any() for graph in job.graphs):
        return None
    unprofiled = len(job.graphs) == 1 and job.graphs[0].unprofiled.synced_ms and _measured_there(report)
    return measure_step(job, workings.step), check_prediction(report, job) if unprofiled else None


def _measured_there(report: StepReport) -> bool:
    """Whether the job was measured on the device that it is predicted on."""
    workings = report.workings
    if workings is None or workings.job is None or workings.device is None:
        return False
    device = "" if workings.device.runs_on_host else workings.device.matches
    return all(graph.device == device for graph in workings.job.graphs)


def range_marks(report: StepReport) -> list[dict[str, Any]]:
    """The step and its 10th and 90th percentile, for the distribution."""
    return [
        {"name": "10 %", "ms": report.low_ms, "dashed": True},
        {"name": "step", "ms": report.step_ms, "dashed": False},
        {"name": "90 %", "ms": report.high_ms, "dashed": True},
    ]


def _predicted_ranks(report: StepReport) -> Chart | None:
    rows = []
    for rank in report.ranks[:MAX_RANKS_DRAWN]:
        exposed = rank.communication.exposed_ms
        about = f"step {ms(rank.step_ms)} ms, bubble {ms(rank.bubble_ms)} ms"
        # On a CPU the host computes.
        active = rank.device_active_ms if report.device_active_ms else report.step_ms
        idle, waits = report.step_ms - active, min(rank.wait_ms or 0.0, exposed)
        rows.append(charts.RankBar(rank_label(rank), active, exposed, waits, idle, about))
    return charts.ranks(rows)


def _measured_ranks(report: StepReport) -> Chart | None:
    """What each rank's device did from its first kernel to its last."""
    rows = []
    for rank in sorted(report.ranks, key=lambda rank: rank.rank) if report.device_span_ms else []:
        peak = f", at most {bytes_(rank.peak_memory_bytes)}" if rank.peak_memory_bytes else ""
        about, times = f"step {ms(rank.step_ms)} ms{peak}", rank.communication
        bar = rank.device_active_ms, times.exposed_ms, times.exposed_wait_ms or 0.0, rank.device_idle_ms
        rows.append(charts.RankBar(str(rank.rank), *bar, about))
    return charts.ranks(rows)


def _distribution(report: StepReport, check: Check | None) -> Chart | None:
    if report.workings is None:
        return None
    measured = [{"name": "measured", "ms": check.step_ms[1], "dashed": False}] if check else []
    return charts.distribution([("prediction", report.workings.samples_ms, [*range_marks(report), *measured])])


def _timelines(report: StepReport, seen: StepReport | None) -> Chart | None:
    drawn = [(report.workings, "predicted")]
    if seen is not None and seen.workings is not None and np.isfinite(seen.workings.graphs[0].ops.start).any():
        drawn.append((seen.workings, "measured" if _measured_there(report) else "measured elsewhere"))
    return timelines(drawn)


def _predicted_memory(report: StepReport) -> Chart | None:
    if report.workings is None:
        return None
    curves = report.workings.memory()
    peak = max((int(curve.nbytes.max()) for _, curve in curves), default=0)
    # Memory outside of storages, as the workspaces of cuBLAS, is allocated all the time.
    outside = max((report.peak_memory_bytes or peak) - peak, 0)
    return charts.memory(curves, 0.0, report.memory_bytes, report.workings.memory_by_kind, outside)


def _measured_memory(report: StepReport) -> Chart | None:
    if report.workings is None:
        return None
    curves, device = report.workings.memory(), report.workings.device
    start = min((float(curve.us.min()) for _, curve in curves), default=0.0)
    capacity = device.memory_bytes if device else None
    return charts.memory(curves, start, capacity, report.workings.memory_by_kind)


def _misses(check: Check | None) -> Chart | None:
    """Prediction errors as changes from measured to predicted."""
    if check is None:
        return None
    rows = [
        TimeChange(miss.name, miss.device_ms[::-1], miss.host_ms[::-1], miss.count[::-1], miss.miss_ms)
        for miss in check.by_op
    ]
    return charts.changes(rows, verdict=False)


def _compared(check: Check) -> Iterator[tuple[str, str, str, str]]:
    """Name, predicted, measured, relative error."""
    for name, pair in (
        ("step", check.step_ms),
        ("back to back", check.step_ms_back_to_back),
        ("device active", check.device_active_ms),
    ):
        if pair:
            yield name, f"{ms(pair[0])} ms", f"{ms(pair[1])} ms", off(pair)
    if check.peak_memory_bytes:
        predicted, measured = check.peak_memory_bytes
        yield "peak memory", bytes_(predicted), bytes_(measured), off(check.peak_memory_bytes)
