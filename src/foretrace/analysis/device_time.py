"""Device time of a rank: active and idle, causes of idling, queue depth, communication that overlaps compute."""

from __future__ import annotations

import numpy as np

from foretrace.analysis.collectives import CollectiveTimes, waiting
from foretrace.analysis.host_time import Segments
from foretrace.analysis.report import Communication, QueueDepth
from foretrace.graph import Graph
from foretrace.graph.operators import C10D_CALLS
from foretrace.graph.tables import CALL, COLLECTIVE, Floats
from foretrace.simulation.task_graph import SYNC, merged, shared, total

Intervals = tuple[Floats, Floats]
"""Starts and ends."""


def active_and_idle(graph: Graph) -> tuple[float, float]:
    """Microseconds in which something ran, and the rest from the first kernel's start to the last one's end."""
    kernels = graph.kernels
    if not len(kernels):
        return 0.0, 0.0
    active = total(kernels.start, kernels.end)
    return active, float(kernels.end.max() - kernels.start.min()) - active


def queue_depth(graph: Graph) -> QueueDepth:
    """Kernels launched and not yet done: mean over the time from the first launch to the last end, and most at once."""
    known = graph.kernels.call >= 0
    if not known.any():
        return QueueDepth()
    done = graph.kernels.end[known]
    launched = np.minimum(graph.calls.end[graph.kernels.call[known]], graph.kernels.start[known])
    times = np.concatenate([done, launched])
    change = np.repeat([-1, 1], len(done))
    depth = np.cumsum(change[np.argsort(times, kind="stable")])
    span = times.max() - times.min()
    return QueueDepth(float((done - launched).sum() / span) if span else 0.0, int(depth.max()))


def communication(graph: Graph, position: int, collectives: list[CollectiveTimes]) -> Communication:
    """Communication of a rank, hidden behind other work or exposed, and what of the exposed is waiting.

    Where nothing ran on a device, threads of the host communicate (gloo), and other calls hide that.
    """
    on_device = len(graph.kernels) > 0
    exchange, compute = _on_device(graph) if on_device else _on_host(graph)
    start, end, device_waits = waiting(position, collectives)
    waits = start[device_waits == on_device], end[device_waits == on_device]
    hidden, whole = shared(exchange, compute), total(*exchange)
    return Communication(
        communication_ms=whole / 1e3,
        hidden_ms=hidden / 1e3,
        exposed_ms=(whole - hidden) / 1e3,
        exposed_wait_ms=(total(*waits) - shared(waits, compute)) / 1e3,
    )


def _on_device(graph: Graph) -> tuple[Intervals, Intervals]:
    """When collectives run, and when other kernels do."""
    kernels = graph.kernels
    communicates = kernels.kind == COLLECTIVE
    return (kernels.start[communicates], kernels.end[communicates]), (
        kernels.start[~communicates],
        kernels.end[~communicates],
    )


def _on_host(graph: Graph) -> tuple[Intervals, Intervals]:
    """When threads communicate, and when other calls run."""
    ops = graph.ops
    asks = ops.names.matching(lambda name: name.startswith(C10D_CALLS))
    timed = np.isfinite(ops.start) & np.isfinite(ops.end) & ~asks[ops.name]
    communicates = np.zeros(len(ops), bool)
    communicates[[collective.op for collective in graph.collectives if collective.op >= 0]] = True
    works = timed & ~communicates & (ops.kind == CALL)
    communicates &= timed
    return (ops.start[communicates], ops.end[communicates]), (ops.start[works], ops.end[works])


def idle_causes(graph: Graph, segments: Segments, end: float) -> Floats:
    """Microseconds, up to the step's end, in which the device idles while the host does something, by kind of host
    time.

    From the launch of the kernel that ends the idling on, the device does not wait for the host: that part is latency.
    """
    kernels = graph.kernels
    busy_start, busy_end, first = merged(kernels.start, kernels.end)
    launched = np.minimum(np.append(graph.calls.end, -np.inf)[kernels.call[first]], busy_start)
    idle_start, idle_end = np.append(0.0, busy_end), np.append(launched, end)
    length = np.append(0.0, np.cumsum(np.maximum(idle_end - idle_start, 0.0)))

    def idle_until(time: Floats) -> Floats:
        """How long the device had idled by then."""
        at = np.searchsorted(idle_start, time, "right") - 1
        return np.asarray(length[at] + np.clip(time - idle_start[at], 0.0, np.diff(length)[at]))

    idle = idle_until(segments.end) - idle_until(segments.start)
    return np.asarray(np.bincount(segments.kind, idle, SYNC + 1), np.float64)


def device_span(graphs: list[Graph]) -> float:
    """Milliseconds from the first kernel's start to the last one's end, over all ranks."""
    busy = [graph.kernels for graph in graphs if len(graph.kernels)]
    return float(max(k.end.max() for k in busy) - min(k.start.min() for k in busy)) / 1e3 if busy else 0.0
