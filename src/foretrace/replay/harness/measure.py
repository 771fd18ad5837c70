"""How long a step takes, what it launches, what it holds."""

from __future__ import annotations

import gc
import json
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import torch

from .host import here
from .modes import Mode

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
FEWEST, MOST, LONG_ENOUGH_S = 20, 500, 1.0
"""How many steps are timed where nobody says: as many as fit in a second, but no fewer than 20."""
Step = Callable[[], Any]


def wait() -> None:
    """Wait until the device is done, where there is one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep Python's garbage collector from choosing its own moment."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def synced_ms(step: Step, iterations: int | None) -> list[float]:
    """Times of steps, each until the device is done with it."""
    times: list[float] = []
    with uncollected():
        step()  # a collection leaves Python without its free lists
        while len(times) < (iterations or MOST):
            if iterations is None and len(times) >= FEWEST and sum(times) > LONG_ENOUGH_S * 1e3:
                break
            wait()
            began = time.perf_counter()
            step()
            wait()
            times.append((time.perf_counter() - began) * 1e3)
    return times


def enough(times: list[float]) -> int:
    """How many steps to time, when some of them took so long.

    >>> enough([10.0, 10.0, 400.0]), enough([200.0])
    (100, 20)
    """
    return min(max(round(LONG_ENOUGH_S * 1e3 / max(median(times), 1e-3)), FEWEST), MOST)


def back_to_back_ms(step: Step, iterations: int) -> float:
    """Time from step to step, where the host may run ahead."""
    with uncollected():
        step()
        wait()
        began = time.perf_counter()
        for _ in range(iterations):
            step()
        wait()
        return (time.perf_counter() - began) * 1e3 / iterations


def kernels_of(step: Step) -> list[tuple[str, float]]:
    """Name and microseconds of each piece of device work of one step; none where there is no device."""
    if not torch.cuda.is_available():
        return []
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # the first one pays for the profiler's start
        wait()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            step()
            wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return [(str(e["name"]), float(e["dur"])) for e in events if e.get("cat") in DEVICE_WORK]


def peak_memory(step: Step, inputs: list[torch.Tensor], threads: int = 1) -> int:
    """Most bytes alive at once during a step: as the device's allocator says, else as storages come and go.

    Each of the original's threads that called matrix products has workspace of its own there, and so it has here.
    """
    if any(tensor.is_cuda for tensor in inputs):
        wait()
        _renew_workspaces(threads)
        torch.cuda.reset_peak_memory_stats()
        step()
        wait()
        return int(torch.cuda.max_memory_allocated())
    with Storages() as storages:
        storages.see(inputs)
        step()
    return int(storages.peak)


def _renew_workspaces(threads: int) -> None:
    """Leave as many workspaces of cuBLAS as so many threads have, less the one that the step itself will make."""
    torch._C._cuda_clearCublasWorkspaces()
    if threads < 2:
        return
    small = torch.zeros(8, 8, device="cuda")
    torch.mm(small, small)  # takes this thread's handle, so that others get handles of their own
    device = torch.cuda.current_device()

    def multiply() -> None:
        torch.cuda.set_device(device)
        torch.mm(small, small)

    others = [Thread(target=multiply) for _ in range(threads - 1)]
    for other in others:
        other.start()
        other.join()


class Storages(Mode):
    """Adds up the storages that calls make, while they live.

    >>> with Storages() as storages:
    ...     x = torch.zeros(256); del x; y = torch.zeros(512)
    >>> storages.peak
    2048
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak: int = 0
        self._held: int = 0
        self._living: dict[int, weakref.ref[Any]] = {}
        self._sizes: dict[int, int] = {}

    def __enter__(self) -> Storages:
        here.resized = self.resized
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        here.resized = None
        super().__exit__(*problem)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see([result])
        return result

    def see(self, values: Any) -> None:
        """Count what is new among some values."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self._count(value)
            elif isinstance(value, (list, tuple)):
                self.see(value)

    def _count(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._living.get(key)
        if known is None or known() is None:
            self._living[key] = weakref.ref(storage, lambda ref: self._died(key, ref))
            self._hold(key, storage.nbytes())

    def resized(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """A storage has another size now."""
        if storage._cdata in self._living:
            self._hold(storage._cdata, nbytes)

    def _hold(self, key: int, nbytes: int) -> None:
        self._held += nbytes - self._sizes.get(key, 0)
        self._sizes[key] = nbytes
        self.peak = max(self.peak, self._held)

    def _died(self, key: int, ref: Any) -> None:
        if self._living.get(key) is ref:
            self._hold(key, 0)
            del self._living[key], self._sizes[key]


def spread(times: list[float]) -> tuple[float, float, float]:
    """Median, and the two quartiles.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    (3.0, 2.0, 4.0)
    """
    ordered = sorted(times)
    return median(ordered), ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
