"""Predict a step: the way from a graph and a platform to a forecast."""

from __future__ import annotations

import numpy as np

from foretrace.forecast.critical import LATENCY, describe
from foretrace.forecast.device import active_and_idle, overlap
from foretrace.forecast.doubt import PERCENTILES, draws
from foretrace.forecast.flat import Flat, flat
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.host import KINDS, Segments
from foretrace.forecast.look_at import look_at
from foretrace.forecast.memory import peak_memory, workspaces
from foretrace.forecast.observe import overheads
from foretrace.forecast.predicted import as_measured, idle_causes, predicted
from foretrace.forecast.rates import totals
from foretrace.forecast.rest import after_a_wait
from foretrace.forecast.step import Step, priced
from foretrace.forecast.steps import chosen_step, cut_to_step
from foretrace.forecast.timetable import Timetable, timetable
from foretrace.forecast.totals import by_family, by_module, by_op, by_phase
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.simulate.forward import simulate
from foretrace.simulate.program import Timeline

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
    table = after_a_wait(costs, timetable(costs, platform.device))
    timeline = simulate(table.program)
    forecast = _told(calls, costs, table, timeline)
    forecast.source, forecast.platform, forecast.world = job.source, platform.name, job.world
    forecast.step_ms_back_to_back = back_to_back(costs, platform.device) / 1e3
    low, high = np.percentile(draws(calls, costs, table), PERCENTILES).tolist()
    forecast.low_ms, forecast.high_ms = min(low / 1e3, forecast.step_ms), max(high / 1e3, forecast.step_ms)
    _add_memory(forecast, whole, alone, platform.device)
    _add_rates(forecast, calls, costs, platform.device)
    forecast.notes = [*job.notes, *whole.notes, *notes, *_alone(job, whole), *_nothing_to_do(costs, platform)]
    return forecast


def _first_rank(job: Job) -> Graph:
    if not job.graphs:
        raise ForetraceError(f"{job.source or 'the job'} holds no rank", "Record the job again.")
    return job.graphs[0]


def _alone(job: Job, graph: Graph) -> list[str]:
    if job.world == 1:
        return []
    return [f"rank {graph.rank} of {job.world} is predicted alone: what it waits for other ranks is not in it"]


def _nothing_to_do(step: Step, platform: Platform) -> list[str]:
    if len(step.work) or platform.device.kind == "cpu":
        return []
    return [f"the step gives {platform.name}'s device nothing to do: were its model and data on the device?"]


def back_to_back(step: Step, device: Device) -> float:
    """Microseconds from the end of one step to the end of the next, with no sync between them."""
    table = timetable(step.repeated(UNROLLED), device)
    end = simulate(table.program).end
    last = np.searchsorted(table.call, np.arange(1, UNROLLED + 1) * len(step))
    *_, before, after = np.maximum.accumulate(end)[last - 1]
    return float(after - before)


def _told(calls: Graph, step: Step, table: Timetable, timeline: Timeline) -> Forecast:
    """What a simulated step says."""
    graph, segments = predicted(calls, step, table, timeline)
    span = timeline.span
    active, _ = active_and_idle(graph)
    communication = overlap(graph, 0, [])
    return Forecast(
        step_ms=span / 1e3,
        device_active_ms=active / 1e3,
        device_idle_ms=(span - active) / 1e3,
        idle_causes=_causes(graph, segments, span),
        kernel_ms=float(step.work.typical.sum()) / 1e3,
        kernels=len(step.work),
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
        timeline=graph,
    )


def _causes(graph: Graph, segments: Segments, end: float) -> dict[str, float]:
    """Milliseconds in which the device stood still, by what the host did; the rest is the device's own latency."""
    by_kind = idle_causes(graph, segments, end) / 1e3
    causes = {kind: float(ms) for kind, ms in zip(KINDS, by_kind)}
    active, _ = active_and_idle(graph)
    causes[LATENCY] = max((end - active) / 1e3 - sum(causes.values()), 0.0)
    return causes


def _add_rates(forecast: Forecast, calls: Graph, step: Step, device: Device) -> None:
    done = totals(calls, step, device)
    if done is None or not forecast.step_ms:
        return
    forecast.tflops, forecast.gigabytes = done.flops / 1e12, done.nbytes / 1e9
    forecast.tflops_per_second = forecast.tflops / forecast.step_ms * 1e3
    forecast.mfu = done.peak_us / 1e3 / forecast.step_ms
    forecast.gbps = forecast.gigabytes / forecast.device_active_ms * 1e3 if forecast.device_active_ms else None


def _add_memory(forecast: Forecast, graph: Graph, step: Flat, device: Device) -> None:
    held = peak_memory(graph)
    forecast.memory_bytes = round(device.memory_gb * 1e9)
    if held is not None:
        # The allocator that a trace has asked counts the workspaces too.
        forecast.peak_memory_bytes = held + (0 if graph.allocated else workspaces(step, device))
        forecast.fits = forecast.peak_memory_bytes <= forecast.memory_bytes
