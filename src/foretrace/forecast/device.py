"""What a rank's device did: active and idle time, launches ahead, communication behind compute."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.forecast.collectives import Meetings
from foretrace.forecast.intervals import shared, total
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE, Floats


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
    """Milliseconds of communication, hidden behind other device work or exposed, and what of the exposed is waiting."""
    kernels = graph.kernels
    collective = kernels.kind == COLLECTIVE
    communication = (kernels.start[collective], kernels.end[collective])
    compute = (kernels.start[~collective], kernels.end[~collective])
    start, end, on_device = waiting(position, meetings)
    waits = start[on_device], end[on_device]
    hidden, all_of_it = shared(communication, compute), total(*communication)
    return {
        "communication_ms": all_of_it / 1e3,
        "hidden_ms": hidden / 1e3,
        "exposed_ms": (all_of_it - hidden) / 1e3,
        "exposed_wait_ms": (total(*waits) - shared(waits, compute)) / 1e3,
    }


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
