"""A step as a program: every rule of how host and device wait for each other is an edge.

A call is a row of host tasks: T1, T2, then its launches (T4) with T5 between them, a wait where it waits for the
device, T3. Kernels stand right behind the launch that they belong to, so that each task comes after all it waits for:

- a thread does one task after the other, and goes on where another thread has handed over to it;
- a kernel starts after its launch, after the kernel before it on its stream, and after what its stream waits for;
- a wait ends when the kernels launched before it on the streams it names are done;
- a launch waits while too many kernels that were launched before it are unfinished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.forecast.dependencies import Pairs, pairs
from foretrace.forecast.host import SYNC, T1, T2, T3, T4, T5
from foretrace.forecast.intervals import previous_on_lane
from foretrace.forecast.step import Step
from foretrace.forecast.waits import ALL_STREAMS, NOBODY
from foretrace.graph.numbers import distinct
from foretrace.graph.tables import COLLECTIVE, Floats, Ints, Longs, Small
from foretrace.platform.capture import Capture
from foretrace.platform.device import Device
from foretrace.simulation.program import Program

KERNEL = SYNC + 1
"""What a task is: one of the kinds of host time, or a kernel."""


@dataclass(frozen=True)
class Timetable:
    """The tasks of a step, and what each stands for."""

    program: Program
    kind: Small
    call: Ints
    """The dispatcher call a task belongs to."""
    kernel: Ints
    """Of a kernel, its row in the work; else -1."""


def timetable(step: Step, device: Device) -> Timetable:
    """The program of a step on a device, which says how soon it starts a kernel and how far launches may be ahead."""
    places = Places(step)
    rules = [*_host_rules(step, places), *_device_rules(step, places, device), *_waiting_rules(step, places, device)]
    # The device's word that it is done takes as long to reach the host as a launch takes to reach the device.
    waking = np.full(len(step), device.measured.launch_latency_us)
    program = Program.of(
        places.spread(step.durations | {SYNC: waking}, step.work.typical),
        _lanes(step, places),
        np.concatenate([edges for edges, _ in rules]),
        np.concatenate([np.full(len(edges), lag) for edges, lag in rules]),
    )
    nothing = np.full(places.count, -1, np.int32)
    nothing[places.kernel] = np.arange(len(step.work))
    return Timetable(program, places.kind, places.call, nothing)


class Places:
    """Where the tasks of a step stand: one after the other, in an order that they could run in."""

    def __init__(self, step: Step) -> None:
        work = step.work
        _, first, kernels = np.unique(work.launch, return_index=True, return_counts=True)
        self.first_kernel, self.kernels = first.astype(np.int64), kernels.astype(np.int64)
        self.launch_call = work.call[first].astype(np.int64)
        self.followed = np.append(self.launch_call[1:] == self.launch_call[:-1], False)[: len(first)]
        waits = step.waits.host != NOBODY
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


def _lanes(step: Step, places: Places) -> Ints:
    threads, thread = np.unique(step.thread, return_inverse=True)
    lane = thread[places.call]
    lane[places.kernel] = np.unique(step.work.stream, return_inverse=True)[1] + len(threads)
    return lane.astype(np.int32)


def _host_rules(step: Step, places: Places) -> Iterator[tuple[Pairs, float]]:
    """A thread does one task after the other; from one thread to another the work is handed over."""
    tasks = np.flatnonzero(places.kind != KERNEL)
    within = places.call[tasks[1:]] == places.call[tasks[:-1]]
    yield pairs(tasks[:-1][within], tasks[1:][within]), 0.0
    previous = previous_on_lane(step.thread, np.arange(len(step), dtype=np.float64))
    same_thread = np.flatnonzero(previous >= 0)
    yield pairs(places.after[previous[same_thread]], places.before[same_thread]), 0.0
    handed_over = np.flatnonzero((np.diff(step.thread) != 0) & ~step.beside[1:]) + 1
    yield pairs(places.after[handed_over - 1], places.before[handed_over]), 0.0


def _device_rules(step: Step, places: Places, device: Device) -> Iterator[tuple[Pairs, float]]:
    """A kernel starts after its launch, the kernel before it, and what its stream waits for."""
    work, pace = step.work, device.measured
    yield pairs(np.repeat(places.launch, places.kernels), places.kernel), pace.launch_latency_us
    previous = previous_on_lane(work.stream, np.arange(len(work), dtype=np.float64))
    later = np.flatnonzero(previous >= 0)
    inside = step.captured[work.call[later]]
    for some, gap in ((later[~inside], pace.kernel_gap_us), (later[inside], Capture.shipped().gap_us)):
        yield pairs(places.kernel[previous[some]], places.kernel[some]), gap
    before, after = step.waits.streams.T
    last, first = step.last_kernel(before), step.first_kernel(after)
    known = (last >= 0) & (first >= 0) & (last < first)
    yield pairs(places.kernel[last[known]], places.kernel[first[known]]), 0.0


def _waiting_rules(step: Step, places: Places, device: Device) -> Iterator[tuple[Pairs, float]]:
    """What holds the host up: a wait for the device, and a device that takes no more launches."""
    for stream in distinct(step.work.stream):
        waits = (step.waits.host[places.waiting] == ALL_STREAMS) | (step.stream[places.waiting] == stream)
        last = step.last_kernel(places.waiting, int(stream))
        known = waits & (last >= 0)
        yield pairs(places.kernel[last[known]], places.wait[known]), 0.0
    if device.measured.queue_depth is not None:
        ahead = places.first_kernel - device.measured.queue_depth
        full = (ahead >= 0) & ~step.captured[places.launch_call]  # a graph waits in the queue as one
        yield pairs(places.kernel[ahead[full]], places.launch[full]), 0.0
    if device.kind == "cpu":  # there a call does its work itself, but for collectives, which threads of their own do
        last = places.first_kernel + places.kernels - 1
        last_of_launch = places.kernel[last[step.work.kind[last] != COLLECTIVE]]
        yield pairs(last_of_launch, last_of_launch + 1), 0.0
        asked, waiting = step.waits.works.T
        kernel = step.last_kernel(asked)
        yield pairs(places.kernel[kernel[kernel >= 0]], places.before[waiting[kernel >= 0]]), 0.0
