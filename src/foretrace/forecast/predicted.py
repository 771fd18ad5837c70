"""A simulated step as a graph: what was predicted is looked at with the same eyes as what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.forecast.host import SYNC, T4, Segments
from foretrace.forecast.intervals import merged
from foretrace.forecast.measured import HOST, Measured
from foretrace.forecast.measured import KERNEL as KERNEL_TASK
from foretrace.forecast.step import Step
from foretrace.forecast.timetable import KERNEL, Timetable
from foretrace.graph import CallTable, Graph, KernelTable, Names, Span
from foretrace.graph.tables import LAUNCH, Floats, Longs
from foretrace.graph.tables import SYNC as SYNC_CALL
from foretrace.simulation.program import Timeline

STEP = "predicted step"
LAUNCH_NAME, WAIT_NAME = "launch", "wait for the device"


def predicted(calls: Graph, step: Step, table: Timetable, timeline: Timeline) -> tuple[Graph, Segments]:
    """The step's graph at the predicted times, and its host time in segments, one for each host task in order."""
    hosts = np.flatnonzero(table.kind != KERNEL)
    segments = _segments(step, table, timeline, hosts)
    runtime = np.flatnonzero((segments.kind == T4) | (segments.kind == SYNC))
    segments.call[runtime] = np.arange(len(runtime))
    ops = replace(calls.ops)
    ops.start, ops.end = _spans(len(step), segments)
    graph = replace(
        calls,
        ops=ops,
        calls=_call_table(segments.rows(runtime)),
        kernels=_kernel_table(step, table, timeline, hosts, segments),
        steps=[Span(STEP, 0.0, timeline.span)],
        collectives=[],
        allocated=(),
        slowdown=1.0,
        origin_ns=0,
    )
    return graph, segments


def as_measured(table: Timetable, timeline: Timeline) -> Measured:
    """The tasks in the form in which the critical path is put in words."""
    device = table.kind == KERNEL
    row = np.where(device, table.kernel, np.cumsum(~device) - 1).astype(np.int32)
    kind = np.where(device, KERNEL_TASK, HOST).astype(np.int8)
    return Measured(table.program, timeline, kind, np.zeros(len(row), np.int32), row)


def idle_causes(graph: Graph, segments: Segments, end: float) -> Floats:
    """Microseconds, up to the step's end, in which the device stood still for want of what the host was doing.

    From the launch of the kernel that ends the idling on, nobody waits for the host: that part is the device's own.
    """
    kernels = graph.kernels
    busy_start, busy_end, first = merged(kernels.start, kernels.end)
    launched = np.minimum(np.append(graph.calls.end, -np.inf)[kernels.call[first]], busy_start)
    idle_start, idle_end = np.append(0.0, busy_end), np.append(launched, end)
    length = np.append(0.0, np.cumsum(np.maximum(idle_end - idle_start, 0.0)))

    def idle_until(time: Floats) -> Floats:
        """How long the device had stood still by then."""
        at = np.searchsorted(idle_start, time, "right") - 1
        return np.asarray(length[at] + np.clip(time - idle_start[at], 0.0, np.diff(length)[at]))

    still = idle_until(segments.end) - idle_until(segments.start)
    return np.asarray(np.bincount(segments.kind, still, SYNC + 1), np.float64)


def _segments(step: Step, table: Timetable, timeline: Timeline, hosts: Longs) -> Segments:
    start, end, kind = timeline.start[hosts].copy(), timeline.end[hosts], table.kind[hosts]
    waits = np.flatnonzero(kind == SYNC)  # they begin when the host is there, and are over when the device is
    start[waits] = end[waits - 1]
    call = table.call[hosts]
    nobody = np.full(len(hosts), -1, np.int32)
    return Segments(start, end, kind, step.thread[call], call, nobody.copy(), nobody)


def _spans(calls: int, segments: Segments) -> tuple[Floats, Floats]:
    """Start and end of each call: its first task, T1, lies before it."""
    first = np.searchsorted(segments.op, np.arange(calls))
    last = np.append(first[1:], len(segments.op)) - 1
    return segments.end[first], segments.end[last]


def _call_table(runtime: Segments) -> CallTable:
    waits = runtime.kind == SYNC
    return CallTable(
        name=waits.astype(np.int32),
        start=runtime.start,
        end=runtime.end,
        thread=runtime.thread,
        kind=np.where(waits, SYNC_CALL, LAUNCH).astype(np.int8),
        op=runtime.op,
        correlation=np.arange(1, len(waits) + 1),
        names=Names([LAUNCH_NAME, WAIT_NAME]),
    )


def _kernel_table(step: Step, table: Timetable, timeline: Timeline, hosts: Longs, segments: Segments) -> KernelTable:
    """The kernels in the order of the work."""
    tasks = np.flatnonzero(table.kind == KERNEL)
    launch = hosts[segments.kind == T4]
    by = launch[np.searchsorted(launch, tasks) - 1]
    names, work = Names(), step.work
    nothing = np.zeros(len(tasks), np.int64)
    return KernelTable(
        name=np.array([names.code(name) for name in work.name], np.int32),
        start=timeline.start[tasks],
        end=timeline.end[tasks],
        stream=work.stream,
        kind=work.kind,
        call=segments.call[np.searchsorted(hosts, by)].astype(np.int32),
        op=work.call,
        nbytes=nothing,
        grid=nothing,
        block=nothing,
        names=names,
    )
