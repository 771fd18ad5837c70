"""The page of a measured step: where it went, on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrace.forecast.observation import Observation
from foretrace.report.forecast import CAUSES
from foretrace.report.headline import observed_rows, which_step
from foretrace.report.numbers import bytes_, ms
from foretrace.report.pages import charts
from foretrace.report.pages.lanes import timeline
from foretrace.report.pages.roofline import roofline
from foretrace.report.pages.sheet import Chart, Sheet
from foretrace.report.sections import WITHOUT_LAUNCHES

ROWS = 300
"""Rows that a table holds; a click shows all of them."""


def observation_page(seen: Observation) -> Sheet:
    """The page.

    >>> from foretrace.forecast.observe import observe
    >>> from foretrace.graph import Graph, Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0)])
    >>> "aten::mm" in observation_page(observe(Graph(ops))).html()
    True
    """
    words = seen.to_dict()
    (_, step, meaning), *facts = observed_rows(words)
    return Sheet(
        "observation.html",
        seen.source or "the step",
        {
            "ranks": _ranks(seen),
            "views": charts.views(words),
            "timeline": _timeline(seen),
            "roofline": roofline(seen.workings) if seen.workings else None,
            "memory": _memory(seen),
        },
        {
            "words": words,
            "which": which_step(words),
            "step": step.removesuffix(" ms"),
            "meaning": meaning,
            "facts": facts,
            "peak": max((peak for peak in seen.peak_memory_bytes.values() if peak), default=None),
            "causes": CAUSES if seen.device_span_ms else WITHOUT_LAUNCHES,
            "rows": ROWS,
        },
    )


def _ranks(seen: Observation) -> Chart | None:
    """What each rank's device did from its first kernel to its last."""
    if not seen.device_span_ms:
        return None
    rows = []
    for rank in sorted(seen.device_active_ms):
        talks = seen.overlap.get(rank, {})
        exposed, waits = talks.get("exposed_ms", 0.0), talks.get("exposed_wait_ms", 0.0)
        active, idle = seen.device_active_ms[rank], seen.device_idle_ms[rank]
        rows.append(charts.RankRow(str(rank), active, exposed, waits, idle, _about(seen, rank)))
    return charts.ranks(rows)


def _about(seen: Observation, rank: int) -> str:
    peak = seen.peak_memory_bytes.get(rank)
    return f"step {ms(seen.step_ms.get(rank))} ms" + (f", at most {bytes_(peak)}" if peak else "")


def _timeline(seen: Observation) -> Chart | None:
    if seen.workings is None or not any(_has_times(graph) for graph in seen.workings.graphs):
        return None
    return {"kind": "timeline", "timelines": [timeline(seen.workings, "measured")]}


def _has_times(graph: Any) -> bool:
    return bool(np.isfinite(graph.ops.start).any() or len(graph.kernels))


def _memory(seen: Observation) -> Chart | None:
    if seen.workings is None:
        return None
    curves = seen.workings.memory()
    starts = [float(curve.us.min()) for _, curve in curves]
    device = seen.workings.device
    return charts.memory(curves, min(starts, default=0.0), round(device.memory_gb * 1e9) if device else None)
