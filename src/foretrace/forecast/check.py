"""Hold a forecast against what was measured: where it is off, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from foretrace.forecast.device import active_and_idle
from foretrace.forecast.flat import flat
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.host import host_segments
from foretrace.forecast.observation import Rows, plain
from foretrace.forecast.totals import by_op
from foretrace.graph import ForetraceError, Graph, Job

Pair = tuple[float, float]
"""Predicted and measured."""


@dataclass
class Check:
    """Forecast and measurement of one recording, in milliseconds: predicted first, then measured."""

    source: str = ""
    platform: str = ""
    step_ms: Pair = (0.0, 0.0)
    """Measured: median of the plain steps with a sync after each."""
    step_ms_back_to_back: Pair | None = None
    range_ms: Pair = (0.0, 0.0)
    """10th and 90th percentile of the forecast."""
    inside: bool = False
    """Whether the measured median lies in that range."""
    device_active_ms: Pair | None = None
    peak_memory_bytes: Pair | None = None
    kernels: Pair | None = None
    """How many there are."""
    coverage: dict[str, float] = field(default_factory=dict)
    by_op: Rows = field(default_factory=list)
    """name, device_ms, host_ms, count (each predicted and measured), miss_ms (of both together): largest first"""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}


def check(forecast: Forecast, recording: Graph | Job) -> Check:
    """Where a forecast is off from the plain steps of a recording, and which ops it is off in.

    Parameters
    ----------
    forecast
        What was predicted for the recording.
    recording
        What was measured: its plain steps for the step time, its profiled one for what ops and kernels took. The
        profiled host times are taken down by the factor by which profiling slowed the step.
    """
    graph = recording if isinstance(recording, Graph) else recording.graphs[0]
    if not graph.plain.synced_ms:
        raise ForetraceError(
            f"{graph.source or 'the graph'} holds no plain steps to check against",
            "Record the job with `foretrace record`, which times plain steps first.",
        )
    measured = float(np.median(graph.plain.synced_ms))
    found = Check(
        source=forecast.source,
        platform=forecast.platform,
        step_ms=(forecast.step_ms, measured),
        range_ms=(forecast.low_ms, forecast.high_ms),
        inside=forecast.low_ms <= measured <= forecast.high_ms,
        coverage=forecast.coverage,
        notes=list(forecast.notes),
    )
    if graph.plain.back_to_back_ms and forecast.step_ms_back_to_back is not None:
        found.step_ms_back_to_back = (forecast.step_ms_back_to_back, float(np.median(graph.plain.back_to_back_ms)))
    if graph.plain.peak_memory_bytes and forecast.peak_memory_bytes:
        found.peak_memory_bytes = (forecast.peak_memory_bytes, graph.plain.peak_memory_bytes)
    if len(graph.kernels):
        found.device_active_ms = (forecast.device_active_ms, active_and_idle(graph)[0] / 1e3)
        found.kernels = (forecast.kernels, len(graph.kernels))
    found.by_op = _misses(forecast, graph)
    return found


def _misses(forecast: Forecast, graph: Graph) -> Rows:
    """Ops by how far their device and host time together are off."""
    calls = flat(graph).calls
    theirs = {row["name"]: row for row in by_op([calls], [host_segments(calls)])}
    ours = {row["name"]: row for row in forecast.by_op}
    nothing = {"device_ms": 0.0, "host_ms": 0.0, "count": 0}
    rows = []
    for name in {*ours, *theirs}:
        predicted, measured = ours.get(name, nothing), theirs.get(name, nothing)
        # Of a step without kernels, what processors do is the host's time.
        device = (predicted["device_ms"], measured["device_ms"]) if len(graph.kernels) else (0.0, 0.0)
        host = (predicted["host_ms"], measured["host_ms"] / graph.slowdown)
        miss = device[0] - device[1] + host[0] - host[1]
        count = (predicted["count"], measured["count"])
        rows.append({"name": name, "device_ms": device, "host_ms": host, "count": count, "miss_ms": miss})
    return sorted(rows, key=lambda row: (-abs(row["miss_ms"]), row["name"]))
