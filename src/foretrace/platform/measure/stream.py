"""How launched work passes through a stream of a GPU: gaps between kernels, latency of a launch, depth of the queue."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

LAUNCHES = 300
"""Kernels that gaps and latencies are taken from."""
USUAL = 12_000_000
"""Elements of the tensor behind whose kernels gaps are taken: kernels of some tens of microseconds, as steps that wait
for the device are made of. Behind tiny ones the gap is a third shorter."""
PAUSE_CYCLES = 2 * 10**8
"""How long the stream is held up while the queue behind it fills: a tenth of a second."""
MOST_QUEUED = 8192
BLOCKED_SECONDS = 5e-3
"""A launch call that takes this long was stopped by a full queue."""


def measure_stream(device: Any) -> dict[str, Any]:
    """What `foretrace.platform.device_facts.DeviceFacts` says of streams, on a CUDA device; nothing for a CPU.

    >>> measure_stream(torch.device("cpu"))
    {}
    """
    if device.type != "cuda":
        return {}
    torch.cuda.set_device(device)
    one = torch.zeros(1, device=device)
    for _ in range(LAUNCHES):
        one.add_(1)
    torch.cuda.synchronize(device)
    how = (
        "gap: median behind kernels of some tens of microseconds; latency: median of tiny ones; "
        "queue: launches until a call had to wait"
    )
    return {**_gap_and_latency(one), "queue_depth": _queue_depth(one), "provenance": how}


def _gap_and_latency(one: torch.Tensor) -> dict[str, float]:
    many = torch.zeros(USUAL, device=one.device)
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        for _ in range(LAUNCHES):
            one.add_(1)
            torch.cuda.synchronize()
        torch.cuda._sleep(PAUSE_CYCLES)
        for _ in range(LAUNCHES):
            many.add_(1)
        torch.cuda.synchronize()
    events = watched.profiler.kineto_results.events()
    launched = {e.correlation_id(): e.start_ns() + e.duration_ns() for e in events if "LaunchKernel" in e.name()}
    kernels = [e for e in events if str(e.device_type()).endswith("CUDA") and "elementwise" in e.name()]
    kernels.sort(key=lambda e: e.start_ns())
    alone, queued = kernels[:LAUNCHES], kernels[-LAUNCHES:]
    latencies = [e.start_ns() - launched[e.correlation_id()] for e in alone if e.correlation_id() in launched]
    gaps = [after.start_ns() - before.start_ns() - before.duration_ns() for before, after in pairwise(queued)]
    return {
        "kernel_gap_us": max(0.0, statistics.median(gaps) / 1e3),
        "launch_latency_us": max(0.0, statistics.median(latencies) / 1e3),
    }


def _queue_depth(one: torch.Tensor) -> int:
    """Kernels that can be launched behind one that does not end, before a launch call has to wait."""
    torch.cuda._sleep(PAUSE_CYCLES)
    queued, took = 0, 0.0
    while took < BLOCKED_SECONDS and queued < MOST_QUEUED:
        begun = time.perf_counter()
        one.add_(1)
        took = time.perf_counter() - begun
        queued += 1
    torch.cuda.synchronize()
    return queued
