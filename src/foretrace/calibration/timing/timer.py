"""Timing calls: each a few times with a cold cache and a few times with a warm one.

On a GPU, kernels are timed: calls run between marker kernels under a profile of the device, which is cut at the
markers. On a CPU the call itself is timed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from foretrace.calibration.timing.call import Call
from foretrace.calibration.timing.device import is_gpu, synchronize
from foretrace.errors import ForetraceError
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import CALL, Measurement, Repeat

REPEATS = 4
"""Runs of a case in each state."""
LONG_US = 1000.0
"""A case that takes longer than this runs once in each state: its repeats hardly differ, and time is short."""
FATAL = ("CUDA error", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "device-side assert")
"""In messages of PyTorch: the device has failed for good, and nothing more can be measured in this process."""
OUT_OF_MEMORY = "out of memory"
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError, ForetraceError)
"""Raised by a call that this PyTorch or device can't do."""
MARKER = "spin_kernel"
"""The kernel behind ``torch.cuda._sleep``: nothing else launches it."""


@dataclass(frozen=True, slots=True)
class CompiledCase(Case):
    """A kernel that was compiled in this process, ready to be launched again: it can't be made from its description."""

    launch: Callable[[], Any] = lambda: None
    indices: None = None

    def __call__(self) -> Any:
        """Launch it once more, with the same tensors."""
        return self.launch()


def time_cases(cases: Iterable[Case], device: Any, until: float = float("inf")) -> list[Measurement]:
    """Measure cases one after the other, under one profile; one that fails is kept with its error.

    After ``until``, a time of `time.monotonic`, no further case is begun; the first one always is.
    """
    found: list[Measurement] = []
    runs: list[tuple[int, int]] = []  # of each case: its first timed run, and the one after its last
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of many random shapes
        timer: Timer = DeviceTimer(device) if is_gpu(device) else HostTimer()
        for case in cases:
            if found and time.monotonic() > until:
                break
            before = timer.timed
            found.append(_run(case, device, timer))
            runs.append((before, timer.timed))
        repeats = timer.repeats()
    for measurement, (first, last) in zip(found, runs):
        if not measurement.error:
            middle = (first + last) // 2
            measurement.cold, measurement.warm = repeats[first:middle], repeats[middle:last]
    return found


def _run(case: Case, device: Any, timer: Timer) -> Measurement:
    """Run a case in both states; its times are filled in later, when the profile is read."""
    measurement = Measurement(case)
    try:
        with tf32_setting(case):
            call = case if isinstance(case, CompiledCase) else Call(case, device)
            measurement.indices = call.indices
            call()  # libraries choose and load their kernels in the first call of a shape
            repeats = 1 if _takes_us(call, device) > LONG_US else REPEATS
            for _ in range(repeats):
                timer.flush_cache()
                timer.time(call)
            call()
            for _ in range(repeats):
                timer.time(call)
    except REFUSALS as error:
        if is_fatal(error):
            raise
        measurement.error = error_line(error)
        if measurement.error == OUT_OF_MEMORY:
            torch.cuda.empty_cache()
    return measurement


def _takes_us(call: Call | CompiledCase, device: Any) -> float:
    """About how long a call takes, on host and device."""
    synchronize(device)
    begun = time.perf_counter()
    call()
    synchronize(device)
    return (time.perf_counter() - begun) * 1e6


def error_line(error: Exception) -> str:
    """The error of a call that can't be made, in a line.

    >>> error_line(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"))
    'out of memory'
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    message = error.what if isinstance(error, ForetraceError) else str(error)
    return message.strip().split("\n")[0][:200]


def is_fatal(error: Exception) -> bool:
    """Whether the device has failed for good.

    >>> is_fatal(RuntimeError("CUDA error: an illegal memory access")), is_fatal(RuntimeError("no such kernel"))
    (True, False)
    """
    return any(text in str(error) for text in FATAL)


@contextmanager
def tf32_setting(case: Case) -> Iterator[None]:
    """Allow TF32 as the case does; the setting is restored afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = case.tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


class Timer(Protocol):
    """Times calls one after the other; their times are known when all are done."""

    timed: int
    """Calls timed so far."""

    def time(self, call: Callable[[], Any]) -> None:
        """Make the call once and time it."""

    def flush_cache(self) -> None:
        """Fill the cache with other data."""

    def repeats(self) -> list[Repeat]:
        """The times of all calls, in order."""


class HostTimer:
    """Times the call itself: for the CPU, where it is over when it returns."""

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

    def flush_cache(self) -> None:
        """Write more than the cache holds."""
        self._filler.add_(1)

    def repeats(self) -> list[Repeat]:
        """The times of all calls, in order."""
        return self._repeats


class DeviceTimer:
    """Times kernels: each call runs between two tiny marker kernels, under a profile of the device alone."""

    def __init__(self, device: Any) -> None:
        self.timed = 0
        torch.cuda.set_device(device)  # for the markers
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

    def flush_cache(self) -> None:
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
        found = cut_at_markers(without_overlap([(e.name(), e.start_ns() / 1e3, e.duration_ns() / 1e3) for e in work]))
        if len(found) != self.timed:
            raise ForetraceError(
                f"the profiler saw {len(found)} of {self.timed} timed calls",
                "Another profiler may be running on this device; stop it and measure again.",
            )
        return found


def without_overlap(work: list[tuple[str, float, float]]) -> list[tuple[str, float]]:
    """Kernels with the time that each adds to what began before it: a library may use several streams.

    >>> without_overlap([("a", 0.0, 5.0), ("b", 2.0, 2.0), ("c", 4.0, 3.0), ("d", 9.0, 1.0)])
    [('a', 5.0), ('b', 0.0), ('c', 2.0), ('d', 1.0)]
    """
    found, busy_until = [], 0.0
    for name, start, us in work:
        end = start + us
        found.append((name, us if start >= busy_until else max(0.0, end - busy_until)))
        busy_until = max(busy_until, end)
    return found


def cut_at_markers(work: list[tuple[str, float]]) -> list[Repeat]:
    """The kernels between the first and the second marker, between the third and the fourth, and so on.

    >>> mark = ("spin_kernel(long)", 1.0)
    >>> cut_at_markers([("fill", 9.0), mark, ("gemm", 5.0), mark, ("fill", 9.0), mark, mark])
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
