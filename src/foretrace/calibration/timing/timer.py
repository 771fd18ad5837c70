"""Times cases: each a few times with a cold cache and a few times with a warm one."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foretrace.graph import ForetraceError
from foretrace.platform.cases import Case
from foretrace.platform.measure.call import Call
from foretrace.platform.measure.clocks import Clock, DeviceClock, HostClock
from foretrace.platform.measure.launched import Launched
from foretrace.platform.measurements import Measurement

REPEATS = 4
"""How often a case runs in each state."""
LONG_US = 1000.0
"""A case that takes longer than this runs once in each state: its repeats hardly differ, and time is short."""
FATAL = ("CUDA error", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "device-side assert")
"""What PyTorch says when a device has failed for good: nothing more can be measured in this process."""
OUT_OF_MEMORY = "out of memory"
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError, ForetraceError)
"""What a call raises that this PyTorch or device can't do."""


def timed(cases: Iterable[Case], device: Any, until: float = float("inf")) -> list[Measurement]:
    """Measure cases one after the other, under one profile.

    A case that fails is kept with what it said; the others go on.

    Parameters
    ----------
    cases
        What to time.
    device
        Where: a CUDA device, or the CPU.
    until
        Time of `time.monotonic` after which no further case is begun; the first one always is.

    >>> from foretrace.cost_models.kernels.families import case_number
    >>> found, = timed([case_number("elementwise", 0, 4096, "cpu")], torch.device("cpu"))
    >>> len(found.cold), len(found.warm), found.us("warm") > 0
    (4, 4, True)
    """
    found: list[Measurement] = []
    begun: list[tuple[int, int]] = []  # of the runs under the clock, a case's first and the one after its last
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyTorch thinks of random shapes is no news
        clock: Clock = DeviceClock(device) if device.type == "cuda" else HostClock()
        for case in cases:
            if found and time.monotonic() > until:
                break
            before = clock.timed
            found.append(_run(case, device, clock))
            begun.append((before, clock.timed))
        repeats = clock.repeats()
    for measurement, (first, last) in zip(found, begun):
        if not measurement.error:
            middle = (first + last) // 2
            measurement.cold, measurement.warm = repeats[first:middle], repeats[middle:last]
    return found


def _run(case: Case, device: Any, clock: Clock) -> Measurement:
    """Run a case in both states; its times are filled in when the clock has them."""
    measurement = Measurement(case)
    try:
        with settings(case):
            call = case if isinstance(case, Launched) else Call(case, device)
            measurement.indices = call.indices
            call()  # libraries choose and load their kernels in the first call of a shape
            repeats = 1 if _takes_us(call, device) > LONG_US else REPEATS
            for _ in range(repeats):
                clock.flush()
                clock.time(call)
            call()
            for _ in range(repeats):
                clock.time(call)
    except REFUSALS as error:
        if is_fatal(error):
            raise
        measurement.error = problem_of(error)
        if measurement.error == OUT_OF_MEMORY:
            torch.cuda.empty_cache()
    return measurement


def problem_of(error: Exception) -> str:
    """What a call said that can't be made, in a line.

    >>> problem_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"))
    'out of memory'
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error):
        return OUT_OF_MEMORY
    said = error.what if isinstance(error, ForetraceError) else str(error)
    return said.strip().split("\n")[0][:200]


def is_fatal(error: Exception) -> bool:
    """Whether the device has failed for good.

    >>> is_fatal(RuntimeError("CUDA error: an illegal memory access")), is_fatal(RuntimeError("no such kernel"))
    (True, False)
    """
    return any(words in str(error) for words in FATAL)


def _takes_us(call: Call | Launched, device: Any) -> float:
    """About how long a call takes, host and device together."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begun = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - begun) * 1e6


@contextmanager
def settings(case: Case) -> Iterator[None]:
    """Products of float32 as the case wants them, and as they were before afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = case.tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
