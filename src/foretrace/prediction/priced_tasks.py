"""The task graph of a priced step, and the step's graph at simulated times.

A call is a row of host tasks: T1, T2, then its launches (T4) with T5 between them, a wait where it waits for the
device, T3. Kernels stand right behind the launch that they belong to, so that each task comes after all it waits for:

- a thread does one task after the other, and goes on where another thread has handed over to it;
- a kernel starts after its launch, after the kernel before it on its stream, and after what its stream waits for;
- a wait ends when the kernels launched before it on the streams it names are done;
- a launch waits while too many kernels that were launched before it are unfinished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.dependencies import Pairs, edges
from foretrace.analysis.host_time import Segments
from foretrace.graph import CallTable, Graph, KernelTable, Names, Span
from foretrace.graph.tables import COLLECTIVE, LAUNCH, Floats, Ints, Longs, Small, distinct
from foretrace.graph.tables import SYNC as SYNC_CALL
from foretrace.platform.device import CudaGraphCosts, Device
from foretrace.prediction.priced_step import ALL_STREAMS, CARRIED, NO_SYNC, PricedStep
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import KERNEL, SYNC, T1, T2, T3, T4, T5, TaskGraph, Timeline, previous_on_lane

STEP = "predicted step"
LAUNCH_NAME, WAIT_NAME = "launch", "wait for the device"


def priced_tasks(step: PricedStep, device: Device) -> TaskGraph:
    """The task graph of a step on a device, which says how soon it starts a kernel and how far launches may be
    ahead."""
    places = Places(step)
    rules = [*_host_rules(step, places), *_device_rules(step, places, device), *_waiting_rules(step, places, device)]
    # The device's signal that it is done takes as long to reach the host as a launch takes to reach the device.
    waking = np.full(len(step), device.measured.launch_latency_us)
    on_device = places.kind == KERNEL
    row = np.cumsum(~on_device, dtype=np.int32) - np.int32(1)
    row[places.kernel] = np.arange(len(step.work), dtype=np.int32)
    return TaskGraph.of(
        places.spread(step.durations | {SYNC: waking}, step.work.typical),
        _lanes(step, places),
        np.concatenate([waits for waits, _ in rules]),
        np.concatenate([np.full(len(waits), lag) for waits, lag in rules]),
        kind=places.kind,
        op=places.call,
        row=row,
    )


def with_cold_host_penalty(step: PricedStep, tasks: TaskGraph) -> TaskGraph:
    """The tasks with cold-host times: the step begins after a device sync, as long as the longest of its own.

    A host that has waited for the device is slow for a while: caches and branch predictors have gone cold.
    """
    waited = longest_wait(tasks, simulate(tasks))
    penalty = np.where(tasks.kind == T1, step.cold[tasks.op], 0.0) * np.log2(1 + waited / 1e3)
    return replace(tasks, duration=tasks.duration + penalty)


def longest_wait(tasks: TaskGraph, timeline: Timeline) -> float:
    """Microseconds that the host waits for the device: in a call, or at the end, when it has done its part."""
    hosts = np.flatnonzero(tasks.on_host)
    ends = timeline.end[hosts]
    inside = np.diff(ends, prepend=0.0)[tasks.kind[hosts] == SYNC]
    return float(max(inside.max(initial=0.0), timeline.end.max() - ends.max()))


class Places:
    """Where the tasks of a step stand: one after the other, in an order that they could run in."""

    def __init__(self, step: PricedStep) -> None:
        work = step.work
        _, first, kernels = np.unique(work.launch, return_index=True, return_counts=True)
        self.first_kernel, self.kernels = first.astype(np.int64), kernels.astype(np.int64)
        self.launch_call = work.call[first].astype(np.int64)
        self.followed = np.append(self.launch_call[1:] == self.launch_call[:-1], False)[: len(first)]
        waits = step.waits.host != NO_SYNC
        block = 1 + kernels + self.followed
        blocks = np.concatenate([[0], np.cumsum(block)])
        calls = len(step)
        inside = np.bincount(self.launch_call, block, calls).astype(np.int64)
        size = 3 + inside + waits
        self.before: Longs = np.cumsum(size) - size
        """T1 of each call; T2 is the next one."""
        self.count = int(size.sum())
        launched_before = np.searchsorted(self.launch_call, np.arange(calls))
        self.launch: Longs = self.before[self.launch_call] + 2 + blocks[:-1] - blocks[launched_before[self.launch_call]]
        self.kernel: Longs = np.repeat(self.launch + 1 - first, kernels) + np.arange(len(work))
        self.between: Longs = (self.launch + 1 + kernels)[self.followed]
        self.after: Longs = self.before + size - 1
        self.waiting: Longs = np.flatnonzero(waits)
        """Calls that wait; the task stands before their T3."""
        self.wait: Longs = self.after[self.waiting] - 1

    @cached_property
    def kind(self) -> Small:
        """What each task is."""
        kind = np.full(self.count, KERNEL, np.int8)
        for code, where in self._host():
            kind[where] = code
        return kind

    @cached_property
    def call(self) -> Ints:
        """The call of each task."""
        return (np.searchsorted(self.before, np.arange(self.count), "right") - 1).astype(np.int32)

    def spread(self, host: dict[int, Floats], device: Floats) -> NDArray[Any]:
        """A number for each task: for the kinds of host time one a call, for kernels one each."""
        result = np.zeros(self.count)
        for code, where in self._host():
            result[where] = host[code][self.call[where]]
        result[self.kernel] = device
        return result

    def _host(self) -> Iterator[tuple[int, Longs]]:
        yield from ((T1, self.before), (T2, self.before + 1), (T3, self.after))
        yield from ((T4, self.launch), (T5, self.between), (SYNC, self.wait))


def _lanes(step: PricedStep, places: Places) -> Ints:
    threads, streams = (np.array(distinct(each), np.int64) for each in (step.thread, step.work.stream))
    thread = np.searchsorted(threads, step.thread)
    lane = thread[places.call]
    lane[places.kernel] = np.searchsorted(streams, step.work.stream) + len(threads)
    return lane.astype(np.int32)


def _host_rules(step: PricedStep, places: Places) -> Iterator[tuple[Pairs, float]]:
    """A thread does one task after the other; from one thread to another the work is handed over."""
    tasks = np.flatnonzero(places.kind != KERNEL)
    within = places.call[tasks[1:]] == places.call[tasks[:-1]]
    yield edges(tasks[:-1][within], tasks[1:][within]), 0.0
    previous = previous_on_lane(step.thread, np.arange(len(step), dtype=np.float64))
    same_thread = np.flatnonzero(previous >= 0)
    yield edges(places.after[previous[same_thread]], places.before[same_thread]), 0.0
    handed_over = np.flatnonzero((np.diff(step.thread) != 0) & ~step.concurrent[1:]) + 1
    yield edges(places.after[handed_over - 1], places.before[handed_over]), 0.0


def _device_rules(step: PricedStep, places: Places, device: Device) -> Iterator[tuple[Pairs, float]]:
    """A kernel starts after its launch, the kernel before it, and what its stream waits for."""
    work, pace = step.work, device.measured
    yield edges(np.repeat(places.launch, places.kernels), places.kernel), pace.launch_latency_us
    previous = previous_on_lane(work.stream, np.arange(len(work), dtype=np.float64))
    later = np.flatnonzero(previous >= 0)
    inside = step.captured[work.call[later]]
    for some, gap in ((later[~inside], pace.kernel_gap_us), (later[inside], CudaGraphCosts.shipped().gap_us)):
        yield edges(places.kernel[previous[some]], places.kernel[some]), gap
    before, after = step.waits.streams.T
    last, first = step.last_kernel(before), step.first_kernel(after)
    known = (last >= 0) & (first >= 0) & (last < first)
    yield edges(places.kernel[last[known]], places.kernel[first[known]]), 0.0


def _waiting_rules(step: PricedStep, places: Places, device: Device) -> Iterator[tuple[Pairs, float]]:
    """What holds the host up: a wait for the device, and a device that takes no more launches."""
    for stream in distinct(step.work.stream):
        waits = (step.waits.host[places.waiting] == ALL_STREAMS) | (step.stream[places.waiting] == stream)
        last = step.last_kernel(places.waiting, int(stream))
        known = waits & (last >= 0)
        yield edges(places.kernel[last[known]], places.wait[known]), 0.0
    if device.measured.queue_depth is not None:
        ahead = places.first_kernel - device.measured.queue_depth
        full = (ahead >= 0) & ~step.captured[places.launch_call]  # a graph waits in the queue as one
        yield edges(places.kernel[ahead[full]], places.launch[full]), 0.0
    if device.runs_on_host:  # there a call does its work itself, but for collectives, which threads of their own do
        last = places.first_kernel + places.kernels - 1
        last_of_launch = places.kernel[last[step.work.kind[last] != COLLECTIVE]]
        yield edges(last_of_launch, last_of_launch + 1), 0.0
        asked, waiting = step.waits.works.T
        kernel = step.last_kernel(asked)
        yield edges(places.kernel[kernel[kernel >= 0]], places.before[waiting[kernel >= 0]]), 0.0


def at_predicted_times(calls: Graph, step: PricedStep, tasks: TaskGraph, timeline: Timeline) -> tuple[Graph, Segments]:
    """The step's graph at the simulated times, and its host time in segments, one for each host task in order.

    A predicted step is then analysed with the same functions as a measured one.
    """
    hosts = np.flatnonzero(tasks.kind != KERNEL)
    segments = _segments(step, tasks, timeline, hosts)
    runtime = np.flatnonzero((segments.kind == T4) | (segments.kind == SYNC))
    segments.call[runtime] = np.arange(len(runtime))
    ops = replace(calls.ops)
    ops.start, ops.end = _spans(len(step), segments)
    graph = replace(
        calls,
        ops=ops,
        calls=_call_table(segments.rows(runtime)),
        kernels=_kernel_table(step, tasks, timeline, hosts, segments),
        steps=[Span(STEP, 0.0, timeline.span)],
        collectives=[],
        allocated=(),
        profiling_overhead=1.0,
        origin_ns=0,
    )
    return graph, segments


def _segments(step: PricedStep, tasks: TaskGraph, timeline: Timeline, hosts: Longs) -> Segments:
    start, end, kind = timeline.start[hosts].copy(), timeline.end[hosts], tasks.kind[hosts]
    waits = np.flatnonzero(kind == SYNC)  # they begin when the host is there, and are over when the device is
    start[waits] = end[waits - 1]
    call = tasks.op[hosts]
    none = np.full(len(hosts), -1, np.int32)
    segments = Segments(start, end, kind, step.thread[call], call, none.copy(), none)
    if step.gaps is None:
        return segments
    carried = np.flatnonzero((kind == T1) & (step.gaps.cause[call] >= 0))
    codes = [segments.causes.code(CARRIED, f"{what}: {name}") for what, name in step.gaps.causes]
    segments.cause[carried] = np.array([*codes, -1], np.int32)[step.gaps.cause[call[carried]]]
    return segments


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


def _kernel_table(
    step: PricedStep, tasks: TaskGraph, timeline: Timeline, hosts: Longs, segments: Segments
) -> KernelTable:
    """The kernels in the order of the work."""
    rows = np.flatnonzero(tasks.kind == KERNEL)
    launch = hosts[segments.kind == T4]
    by = launch[np.searchsorted(launch, rows) - 1]
    names, work = Names(), step.work
    nothing = np.zeros(len(rows), np.int64)
    return KernelTable(
        name=np.array([names.code(name) for name in work.name], np.int32),
        start=timeline.start[rows],
        end=timeline.end[rows],
        stream=work.stream,
        kind=work.kind,
        call=segments.call[np.searchsorted(hosts, by)].astype(np.int32),
        op=work.call,
        nbytes=nothing,
        grid=nothing,
        block=nothing,
        names=names,
    )
