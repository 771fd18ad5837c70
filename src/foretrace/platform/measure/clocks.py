"""Two ways to time a call: a profile of the device cut at markers, and the host's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from foretrace.graph import ForetraceError
from foretrace.platform.measurements import CALL, Repeat

MARKER = "spin_kernel"
"""The kernel behind ``torch.cuda._sleep``: nothing else launches it."""


class Clock(Protocol):
    """Times calls one after the other; what they took is known when all are done."""

    timed: int
    """Calls timed so far."""

    def time(self, call: Callable[[], Any]) -> None:
        """Make the call once and time it."""

    def flush(self) -> None:
        """Fill the cache with something else."""

    def repeats(self) -> list[Repeat]:
        """What each timed call took, in order."""


class HostClock:
    """Times the call itself: for the CPU, where it is over when it returns.

    >>> clock = HostClock()
    >>> clock.time(lambda: torch.ones(8).add(1))
    >>> [(name, us)], = clock.repeats()
    >>> name, us > 0
    ('call', True)
    """

    def __init__(self) -> None:
        self.timed = 0
        self._repeats: list[Repeat] = []
        self._filler = torch.zeros(2**24, dtype=torch.int32)

    def time(self, call: Callable[[], Any]) -> None:
        """Make the call once and time it."""
        self.timed += 1
        start = time.perf_counter_ns()
        call()
        self._repeats.append([(CALL, (time.perf_counter_ns() - start) / 1e3)])

    def flush(self) -> None:
        """Write more than the cache holds."""
        self._filler.add_(1)

    def repeats(self) -> list[Repeat]:
        """What each timed call took, in order."""
        return self._repeats


class DeviceClock:
    """Times kernels: each call runs between two tiny marker kernels, under a profile of the device alone."""

    def __init__(self, device: Any) -> None:
        self.timed = 0
        torch.cuda.set_device(device)  # where the markers go
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self._filler = torch.zeros(4 * cache, dtype=torch.int8, device=device)
        torch.cuda.synchronize(device)
        self._device = device
        self._profile = profile(activities=[ProfilerActivity.CUDA])
        self._profile.start()

    def time(self, call: Callable[[], Any]) -> None:
        """Make the call once between two markers."""
        self.timed += 1
        torch.cuda._sleep(1)
        try:
            call()
        finally:
            torch.cuda._sleep(1)

    def flush(self) -> None:
        """Write more than the cache holds."""
        self._filler.fill_(1)

    def repeats(self) -> list[Repeat]:
        """The kernels between each pair of markers."""
        torch.cuda.synchronize(self._device)
        self._profile.stop()
        # The events as the profiler holds them: an exported file would take many times longer.
        events = self._profile.profiler.kineto_results.events()
        work = [e for e in events if str(e.device_type()).endswith("CUDA")]
        work.sort(key=lambda e: e.start_ns())
        found = cut([(e.name(), e.duration_ns() / 1e3) for e in work])
        if len(found) != self.timed:
            raise ForetraceError(
                f"the profiler saw {len(found)} of {self.timed} timed calls",
                "Another profiler may be running on this device; stop it and measure again.",
            )
        return found


def cut(work: list[tuple[str, float]]) -> list[Repeat]:
    """The kernels between the first and the second marker, between the third and the fourth, and so on.

    >>> mark = ("spin_kernel(long)", 1.0)
    >>> cut([("fill", 9.0), mark, ("gemm", 5.0), mark, ("fill", 9.0), mark, mark])
    [[('gemm', 5.0)], []]
    """
    repeats: list[Repeat] = []
    inside = False
    for name, us in work:
        if MARKER in name:
            inside = not inside
            if inside:
                repeats.append([])
        elif inside:
            repeats[-1].append((name, us))
    return repeats
