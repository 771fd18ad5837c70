"""A light profile of a step, cut at each call's launches; the profiler's own weight is still on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from foretrace.platform.host_measurements import Calls, Profiled
from foretrace.platform.measure.host_training import Training

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpyAsync", "cudaMemsetAsync", "hipLaunch", "hipExtLaunch", "hipMemcpy")
"""How the names of runtime calls begin that start work on the device."""
LOOK_AHEAD = 8
"""Calls that the profile may leave out in a row."""
MARK = "foretrace::mark"
"""The annotation around what is looked for in a profile."""
NOT_SHOWN = (-1.0, -1.0, -1.0, -1.0, 0)


class Event(NamedTuple):
    """A stretch of host time, in nanoseconds."""

    start: int
    end: int
    name: str


def profiled(training: Training, calls: Calls) -> Profiled:
    """Profile two steps, the first of which pays for the profiler's start, and find each call of the second.

    >>> from foretrace.platform.measure.host_watch import calls_of
    >>> weight = torch.ones(3, requires_grad=True)
    >>> training = Training(lambda: weight.sum(), torch.optim.SGD([weight], lr=0.5))
    >>> calls = calls_of(training)
    >>> found = profiled(training, calls)
    >>> len(found.to_launch) == len(calls), found.launches[0]
    (True, 0)
    """
    (step,) = profiled_steps(training, 1)
    return cut_at_launches(step, calls.name)


def profiled_steps(training: Training, repeats: int) -> list[list[Event]]:
    """The events of some steps under one profile, but for a first one.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> training = Training(lambda: weight.sum(), torch.optim.SGD([weight], lr=0.5))
    >>> [any(event.name == "aten::sum" for event in step) for step in profiled_steps(training, 2)]
    [True, True]
    """
    return _marked([training.timed_step] * repeats, first=training.timed_step)


def launches_of(calls: Sequence[Callable[[], Any]]) -> list[int]:
    """How many launches each of some calls makes.

    >>> launches_of([lambda: torch.ones(3), lambda: torch.ones(3).sum()])
    [0, 0]
    """
    return [sum(event.name.startswith(LAUNCHES) for event in inside) for inside in _marked(calls)]


def _marked(calls: Sequence[Callable[[], Any]], first: Callable[[], Any] = lambda: None) -> list[list[Event]]:
    """Run calls under one profile; the events inside each, on whatever thread, in order."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as running:
        first()
        for call in calls:
            with record_function(MARK):
                call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    events = [
        Event(e.start_ns(), e.start_ns() + e.duration_ns(), e.name())
        for e in running.profiler.kineto_results.events()
        if str(e.device_type()).endswith("CPU")
    ]
    events.sort(key=lambda event: (event.start, -event.end))
    starts = [event.start for event in events]
    marks = [(place, event) for place, event in enumerate(events) if event.name == MARK]
    return [events[place + 1 : bisect_left(starts, mark.end)] for place, mark in marks]


def cut_at_launches(events: list[Event], names: list[str]) -> Profiled:
    """For each call, the time up to its first launch, in launches, between them, and after the last.

    >>> events = [Event(0, 9000, "aten::linear"), Event(1000, 8000, "aten::mm"), Event(3000, 5000, "cudaLaunchKernel")]
    >>> found = cut_at_launches(events, ["aten::mm"])
    >>> found.to_launch, found.launching, found.after, found.launches
    ([2.0], [2.0], [3.0], [1])
    """
    rows: list[tuple[Any, ...]] = []
    for call, inside in _found(events, names):
        launches = [event for event in inside if event.name.startswith(LAUNCHES)]
        rows.append(_parts(call, launches) if call else NOT_SHOWN)
    return Profiled(*([row[column] for row in rows] for column in range(len(NOT_SHOWN))))


def found_calls(events: Sequence[Event], names: Sequence[str]) -> list[Event | None]:
    """For each call its event; None where the profile does not show it.

    >>> events = [Event(0, 9, "aten::linear"), Event(1, 8, "aten::mm"), Event(9, 9, "aten::add")]
    >>> [call.start if call else None for call in found_calls(events, ["aten::mm", "aten::t", "aten::add"])]
    [1, None, 9]
    """
    return [call for call, _ in _found(events, names)]


def _found(events: Sequence[Event], names: Sequence[str]) -> list[tuple[Event | None, Sequence[Event]]]:
    """For each call its event, and those inside."""
    rows: list[tuple[Event | None, Sequence[Event]]] = []
    place = 0
    while place < len(events):
        event = events[place]
        ahead = names[len(rows) : len(rows) + LOOK_AHEAD]
        place += 1
        if event.name not in ahead:
            continue
        first = place
        while place < len(events) and events[place].start < event.end:
            place += 1
        rows += [(None, ())] * ahead.index(event.name)
        rows.append((event, events[first:place]))
    return rows + [(None, ())] * (len(names) - len(rows))


def _parts(call: Event, launches: list[Event]) -> tuple[Any, ...]:
    if not launches:
        return (call.end - call.start) / 1e3, 0.0, 0.0, 0.0, 0
    launching = sum(event.end - event.start for event in launches)
    first, last = launches[0].start, launches[-1].end
    parts = (first - call.start, launching, last - first - launching, call.end - last)
    return *(round(part / 1e3, 2) for part in parts), len(launches)
