"""What a rank's device did: active and idle time, launches ahead, communication behind compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.forecast.collectives import Meetings
from foretrace.forecast.intervals import shared, total
from foretrace.graph import Graph
from foretrace.graph.collectives import EXCHANGES
from foretrace.graph.tables import CALL, COLLECTIVE, Floats

Stretches = tuple[Floats, Floats]
"""Starts and ends."""


def active_and_idle(graph: Graph) -> tuple[float, float]:
    """Microseconds in which something ran, and the rest from the first kernel's start to the last one's end."""
    kernels = graph.kernels
    if not len(kernels):
        return 0.0, 0.0
    active = total(kernels.start, kernels.end)
    return active, float(kernels.end.max() - kernels.start.min()) - active


def queue_depth(graph: Graph) -> tuple[float, int]:
    """Kernels launched and not yet done: mean over the time from the first launch to the last end, and most at once."""
    known = graph.kernels.call >= 0
    if not known.any():
        return 0.0, 0
    done = graph.kernels.end[known]
    launched = np.minimum(graph.calls.end[graph.kernels.call[known]], graph.kernels.start[known])
    times = np.concatenate([done, launched])
    change = np.repeat([-1, 1], len(done))
    depth = np.cumsum(change[np.argsort(times, kind="stable")])
    span = times.max() - times.min()
    return float((done - launched).sum() / span) if span else 0.0, int(depth.max())


def overlap(graph: Graph, position: int, meetings: list[Meetings]) -> dict[str, float]:
    """Milliseconds of communication, hidden behind other work or exposed, and what of the exposed is waiting.

    Where nothing ran on a device, the host's threads exchange (gloo), and what hides that are other calls.
    """
    on_device = len(graph.kernels) > 0
    communication, compute = _on_device(graph) if on_device else _on_host(graph)
    start, end, device_waits = waiting(position, meetings)
    waits = start[device_waits == on_device], end[device_waits == on_device]
    hidden, all_of_it = shared(communication, compute), total(*communication)
    return {
        "communication_ms": all_of_it / 1e3,
        "hidden_ms": hidden / 1e3,
        "exposed_ms": (all_of_it - hidden) / 1e3,
        "exposed_wait_ms": (total(*waits) - shared(waits, compute)) / 1e3,
    }


def _on_device(graph: Graph) -> tuple[Stretches, Stretches]:
    """When kernels exchange, and when others compute."""
    kernels = graph.kernels
    talks = kernels.kind == COLLECTIVE
    return (kernels.start[talks], kernels.end[talks]), (kernels.start[~talks], kernels.end[~talks])


def _on_host(graph: Graph) -> tuple[Stretches, Stretches]:
    """When threads exchange, and when calls do something else."""
    ops = graph.ops
    asks = ops.names.matching(lambda name: name.startswith(EXCHANGES))
    timed = np.isfinite(ops.start) & np.isfinite(ops.end) & ~asks[ops.name]
    talks = np.zeros(len(ops), bool)
    talks[[collective.op for collective in graph.collectives if collective.op >= 0]] = True
    works = timed & ~talks & (ops.kind == CALL)
    talks &= timed
    return (ops.start[talks], ops.end[talks]), (ops.start[works], ops.end[works])


def waiting(position: int, meetings: list[Meetings]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """From when to when the rank at a position waits for others, and whether its device does; waits may overlap."""
    starts, ends, devices = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, bool)]
    for group in meetings:
        if position in group.members:
            column = group.members.index(position)
            starts.append(group.start[:, column])
            ends.append((group.start + group.wait)[:, column])
            devices.append(group.kernel[:, column] >= 0)
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(devices)
