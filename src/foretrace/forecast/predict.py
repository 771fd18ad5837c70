"""Predict a step: the way from a graph and a platform to a forecast."""

from __future__ import annotations

import numpy as np

from foretrace.forecast.contention import contends, run_alone
from foretrace.forecast.critical import LATENCY, describe
from foretrace.forecast.device import active_and_idle, overlap
from foretrace.forecast.doubt import PERCENTILES, draws
from foretrace.forecast.flat import Flat, flat
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.host import KINDS, SYNC, Segments
from foretrace.forecast.look_at import look_at
from foretrace.forecast.memory import peak_memory, workspaces
from foretrace.forecast.observe import overheads
from foretrace.forecast.predicted import as_measured, idle_causes, predicted
from foretrace.forecast.ranks import device_span, rank_rows
from foretrace.forecast.rates import add_rates, totals
from foretrace.forecast.rest import after_a_wait
from foretrace.forecast.step import Step, priced
from foretrace.forecast.steps import chosen_step, cut_to_step
from foretrace.forecast.timetable import Timetable, timetable
from foretrace.forecast.totals import by_family, by_module, by_op, by_phase
from foretrace.forecast.workings import Workings
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.graph.tables import percentiles
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.simulation.program import Timeline

UNROLLED = 4
"""Steps after which the distance between ends has settled: the host is as far ahead as it gets, or never is."""


def predict(what: Graph | Job, platform: Platform, kernels: str | None = None, step: str | None = None) -> Forecast:
    """How long a step takes on a platform, and why: `foretrace.predict` of what is already at hand."""
    job = Job([what], what.source) if isinstance(what, Graph) else what
    whole = _first_rank(job)
    graph, _ = cut_to_step(whole, chosen_step(Job([whole], job.source), step))
    alone = flat(graph)
    calls = alone.calls
    if not len(calls.ops):
        raise ForetraceError(f"{job.source or 'the graph'} holds no calls", "Record or sketch a training step.")
    costs, notes = priced(graph, alone, platform, kernels)
    slowed = contends(calls, platform, kernels)
    table, timeline = run_alone(after_a_wait(costs, timetable(costs, platform.device)), costs.work, slowed)
    shown = predicted(calls, costs, table, timeline)
    forecast = _told(calls, costs, table, timeline, *shown)
    forecast.source, forecast.platform, forecast.world = job.source, platform.name, job.world
    forecast.fabric = platform.fabric.name if platform.fabric else None
    forecast.step_ms_back_to_back = back_to_back(costs, platform.device, slowed) / 1e3
    drawn = draws(calls, costs, table)
    low, high = percentiles(drawn, PERCENTILES)
    forecast.low_ms, forecast.high_ms = min(low / 1e3, forecast.step_ms), max(high / 1e3, forecast.step_ms)
    _add_memory(forecast, whole, alone, platform.device)
    forecast.workings = Workings(
        as_measured(table, timeline), [shown[0]], [shown[1]], platform.device, [costs.work.source], drawn / 1e3
    )
    add_rates(forecast, [totals(calls, costs, platform.device)])
    forecast.notes = [*job.notes, *whole.notes, *notes, *_alone(job, whole), *_nothing_to_do(costs, platform)]
    return forecast


def _first_rank(job: Job) -> Graph:
    if not job.graphs:
        raise ForetraceError(f"{job.source or 'the job'} holds no rank", "Record the job again.")
    return job.graphs[0]


def _alone(job: Job, graph: Graph) -> list[str]:
    if job.world == 1:
        return []
    if job.alike and not job.missing:
        return [f"all {job.world:,} ranks do the same"]
    return [f"rank {graph.rank} of {job.world} is predicted alone: what it waits for other ranks is not in it"]


def _nothing_to_do(step: Step, platform: Platform) -> list[str]:
    if len(step.work) or platform.device.kind == "cpu":
        return []
    return [f"the step gives {platform.name}'s device nothing to do: were its model and data on the device?"]


def back_to_back(step: Step, device: Device, slowed: bool) -> float:
    """Microseconds from the end of one step to the end of the next, with no sync between them."""
    again = step.repeated(UNROLLED)
    table, timeline = run_alone(timetable(again, device), again.work, slowed)
    last = np.searchsorted(table.call, np.arange(1, UNROLLED + 1) * len(step))
    *_, before, after = np.maximum.accumulate(timeline.end)[last - 1]
    return float(after - before)


def _told(calls: Graph, step: Step, table: Timetable, timeline: Timeline, graph: Graph, segments: Segments) -> Forecast:
    """What a simulated step says; ``graph`` and ``segments`` are at the simulated times."""
    span = timeline.span
    active, _ = active_and_idle(graph)
    communication = overlap(graph, 0, [])
    return Forecast(
        step_ms=span / 1e3,
        device_active_ms=active / 1e3,
        device_idle_ms=(span - active) / 1e3,
        idle_causes=_causes(graph, segments, span),
        kernel_ms=float((graph.kernels.end - graph.kernels.start).sum()) / 1e3,
        kernels=len(step.work),
        device_span_ms=device_span([graph]),
        ranks=rank_rows([graph], [segments.duration[segments.kind != SYNC].sum()], [], {}),
        wait_ms={graph.rank: 0.0},
        exposed_communication_ms=communication["exposed_ms"],
        hidden_communication_ms=communication["hidden_ms"],
        coverage=step.work.coverage(),
        critical_path=describe(as_measured(table, timeline), [graph], [segments]).parts,
        look_at=look_at(calls, step, table, timeline),
        overheads=overheads(segments),
        by_op=by_op([graph], [segments]),
        by_family=by_family([graph], [segments]),
        by_phase=by_phase([graph], [segments]),
        by_module=by_module([graph], [segments]),
    )


def _causes(graph: Graph, segments: Segments, end: float) -> dict[str, float]:
    """Milliseconds in which the device stood still, by what the host did; the rest is the device's own latency."""
    by_kind = idle_causes(graph, segments, end) / 1e3
    causes = {kind: float(ms) for kind, ms in zip(KINDS, by_kind)}
    active, _ = active_and_idle(graph)
    causes[LATENCY] = max((end - active) / 1e3 - sum(causes.values()), 0.0)
    return causes


def _add_memory(forecast: Forecast, graph: Graph, step: Flat, device: Device) -> None:
    held = peak_memory(graph)
    forecast.memory_bytes = round(device.memory_gb * 1e9)
    if held is not None:
        # The allocator that a trace has asked counts the workspaces too.
        forecast.peak_memory_bytes = held + (0 if graph.allocated else workspaces(step, device))
        forecast.fits = forecast.peak_memory_bytes <= forecast.memory_bytes
