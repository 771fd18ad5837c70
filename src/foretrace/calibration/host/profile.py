"""Light profiles of a step: each call cut at its launches, and on a CPU the gaps between calls.

On a CPU a call is its work, and small steps leave nothing to explain between calls; besides, all that Python and
autograd need is in the caches there, while in a job each GEMM has evicted it. So gaps are taken from a step with larger
GEMMs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from foretrace.calibration.host.training import BACKWARD, FORWARD, OPTIMIZER, Training, calls_of, trained
from foretrace.platform.measurements.host import Calls, Profiled

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaMemcpyAsync", "cudaMemsetAsync", "hipLaunch", "hipExtLaunch", "hipMemcpy")
"""Prefixes of the runtime calls that start work on the device."""
LOOK_AHEAD = 8
"""Calls in a row that may be missing in a profile."""
MARK = "foretrace::mark"
"""The annotation around a profiled call or step."""
NOT_SHOWN = (-1.0, -1.0, -1.0, -1.0, 0)
BLOCKS, SIDE, ROWS = 3, 256, 256
"""Of the step whose gaps are taken: GEMMs of some tenths of a millisecond, on some megabytes."""
REPEATS = 5
"""Profiles of that step."""


class Event(NamedTuple):
    """An event on the host, in nanoseconds."""

    start: int
    end: int
    name: str


def profile_step(training: Training, calls: Calls) -> Profiled:
    """Profile two steps, the first of which includes the profiler's start, and find each call of the second."""
    (step,) = profile_steps(training, 1)
    return cut_at_launches(step, calls.name)


def profile_steps(training: Training, repeats: int) -> list[list[Event]]:
    """The events of some steps under one profile, after a first one."""
    return _profile_marked([training.timed_step] * repeats, first=training.timed_step)


def launches_of(calls: Sequence[Callable[[], Any]]) -> list[int]:
    """How many launches each of some calls makes.

    >>> launches_of([lambda: torch.ones(3), lambda: torch.ones(3).sum()])
    [0, 0]
    """
    return [sum(event.name.startswith(LAUNCHES) for event in inside) for inside in _profile_marked(calls)]


def _profile_marked(calls: Sequence[Callable[[], Any]], first: Callable[[], Any] = lambda: None) -> list[list[Event]]:
    """Run calls under one profile; the events inside each, on any thread, in order."""
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
    """For each call, the time to its first launch, in launches, between them, and after the last."""
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


class MlpBlock(nn.Module):
    """A transformer's block without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.widen, self.narrow = nn.LayerNorm(SIDE), nn.Linear(SIDE, 4 * SIDE), nn.Linear(4 * SIDE, SIDE)

    def forward(self, rows: Any) -> Any:
        """The block's output for some rows."""
        return rows + self.narrow(nn.functional.gelu(self.widen(self.norm(rows))))


def gaps_us() -> tuple[float, float, float]:
    """Mean microseconds between two calls on a CPU: in forward, backward and optimizer.

    >>> min(gaps_us()) > 0
    True
    """
    model, given = nn.Sequential(*(MlpBlock() for _ in range(BLOCKS))), torch.ones(ROWS, SIDE)
    training: Training = trained(model, lambda: model(given).square().sum(), "adamw one by one")
    for _ in range(2):
        training.timed_step()
    calls = calls_of(training)
    forward, backward, optimizer = mean_gaps(profile_steps(training, REPEATS), calls)
    return forward, backward, optimizer


def mean_gaps(steps: Sequence[Sequence[Event]], calls: Calls) -> list[float]:
    """The mean gap before a call of each phase; each gap the median over some repeats of the step."""
    each = np.full((len(steps), len(calls)), np.nan)
    for repeat, events in enumerate(steps):
        found = found_calls(events, calls.name)
        for row, (before, after) in enumerate(pairwise(found), 1):
            if before and after and calls.phase[row] == calls.phase[row - 1]:
                each[repeat, row] = (after.start - before.end) / 1e3
    seen = np.flatnonzero(np.isfinite(each).any(axis=0))
    typical, phase = np.nanmedian(each[:, seen], axis=0), np.array(calls.phase)[seen]
    return [
        float(typical[phase == one].mean()) if (phase == one).any() else 0.0 for one in (FORWARD, BACKWARD, OPTIMIZER)
    ]
