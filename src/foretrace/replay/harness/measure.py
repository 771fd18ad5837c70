"""Timing a benchmark: step time, kernels, peak memory, and the comparison with the original."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

import torch

from . import system
from .benchmark import Benchmark
from .memory import Storages
from .ranks import gather_from_ranks, rank_state
from .report import by_op, compare_kernels, weights

WARM_UP = 4
FIGURES = ("step_ms", "step_ms_back_to_back", "kernel_ms", "launches", "peak_memory_bytes")
"""Figures that both a replay and its original have."""
NOT_FIGURES = ("kernels", "why")
"""Fields of ``original.json`` that are no figures of the step."""


def measure_benchmark(
    benchmark: Benchmark, iterations: int | None, paced: bool, counters: bool = False
) -> dict[str, Any]:
    """Time a benchmark and compare it with the original; the fields are documented in docs/replay.md."""
    step = benchmark.step(paced)
    times = _times(benchmark, step, iterations)
    kernels = kernels_of(step) if benchmark.device == "cuda" else []
    result = {
        "device": torch.cuda.get_device_name() if benchmark.device == "cuda" else benchmark.device,
        "paced": paced,
        **times,
        "kernel_ms": sum(us for _, us in kernels) / 1e3 if kernels else None,
        "launches": len(kernels) if kernels else None,
        "peak_memory_bytes": peak_memory(step, benchmark.inputs, benchmark.facts["threads"]),
        "system": _system(benchmark, step, counters),
        "kernels": compare_kernels(kernels, benchmark.original["kernels"]),
        **_coverage(benchmark),
        "original": {field: value for field, value in benchmark.original.items() if field not in NOT_FIGURES},
        "notes": benchmark.notes,
    }
    if all(result[field] is None or benchmark.original.get(field) is None for field in FIGURES):
        why = benchmark.original.get("why") or "what it measured is of another device"
        benchmark.notes.append(f"there is no original to compare with: {why}")
    return result


def _times(benchmark: Benchmark, step: Callable[[], Any], iterations: int | None) -> dict[str, Any]:
    """Step times; None on the meta device, which computes nothing."""
    if benchmark.device == "meta":
        benchmark.notes.append("nothing is computed on the meta device, so a step has no time there")
        fields = ("step_ms", "low_ms", "high_ms", "step_ms_back_to_back")
        return {"iterations": 0, **dict.fromkeys(fields)}
    for _ in range(WARM_UP):
        step()
    if rank_state.connected and iterations is None:  # ranks that stop at different steps would wait for each other
        iterations = gather_from_ranks(enough_steps(synced_ms(step, WARM_UP)))[0]
    times = synced_ms(step, iterations)
    ordered = sorted(times)
    return {
        "iterations": len(times),
        "step_ms": median(times),
        "low_ms": ordered[len(times) // 4],
        "high_ms": ordered[3 * len(times) // 4],
        "step_ms_back_to_back": back_to_back_ms(step, len(times)),
    }


def _system(benchmark: Benchmark, step: Callable[[], Any], counters: bool) -> dict[str, Any] | None:
    """Power, clock and counters of the GPU; None on a CPU, and for several ranks, which can't agree on when to stop."""
    if benchmark.device != "cuda" or rank_state.connected:
        if counters:
            where = "several ranks at once" if rank_state.connected else f"the {benchmark.device}"
            benchmark.notes.append(f"nothing is counted on {where}: --counters are those of one rank's GPU")
        return None
    found: dict[str, Any] = system.power_and_clock(step, synchronize)
    if counters:
        found |= system.counters([str(benchmark.folder / "run.py"), "--counted"])[0]
    return found


def _coverage(benchmark: Benchmark) -> dict[str, Any]:
    """Which calls were made, which were not, and why."""
    facts = benchmark.facts
    return {
        "weights": weights(facts["calls"], facts["numbers"], benchmark.called, facts["unowned_us"]),
        "ops": by_op(facts["calls"], facts["numbers"], benchmark.called),
        "failures": [vars(failure) for failure in benchmark.source.failures],
        "stand_ins": [
            {"call": facts["calls"][number]["name"], "why": facts["stand_ins"].get(str(number), "")}
            for number in benchmark.source.stand_ins
        ],
        "translated": dict(Counter(facts["calls"][number]["name"] for number in benchmark.source.translated)),
    }


DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
MIN_STEPS, MAX_STEPS, TARGET_S = 20, 500, 1.0
"""Steps timed by default: as many as fit in a second, within these bounds."""
Step = Callable[[], Any]


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage now, and not inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def synced_ms(step: Step, iterations: int | None) -> list[float]:
    """Times of steps, each including its device work."""
    times: list[float] = []
    with no_garbage_collection():
        step()  # a collection empties Python's free lists
        while len(times) < (iterations or MAX_STEPS):
            if iterations is None and len(times) >= MIN_STEPS and sum(times) > TARGET_S * 1e3:
                break
            synchronize()
            began = time.perf_counter()
            step()
            synchronize()
            times.append((time.perf_counter() - began) * 1e3)
    return times


def enough_steps(times: list[float]) -> int:
    """Number of steps to time, given the times of some.

    >>> enough_steps([10.0, 10.0, 400.0]), enough_steps([200.0])
    (100, 20)
    """
    return min(max(round(TARGET_S * 1e3 / max(median(times), 1e-3)), MIN_STEPS), MAX_STEPS)


def back_to_back_ms(step: Step, iterations: int) -> float:
    """Time per step without synchronization in between, so that the host may run ahead."""
    with no_garbage_collection():
        step()
        synchronize()
        began = time.perf_counter()
        for _ in range(iterations):
            step()
        synchronize()
        return (time.perf_counter() - began) * 1e3 / iterations


def kernels_of(step: Step) -> list[tuple[str, float]]:
    """Name and microseconds of each kernel, copy and fill of one step; empty without a GPU."""
    if not torch.cuda.is_available():
        return []
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # the first includes the start of the profiler
        synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            step()
            synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return [(str(e["name"]), float(e["dur"])) for e in events if e.get("cat") in DEVICE_WORK]


def peak_memory(step: Step, inputs: list[torch.Tensor], threads: int = 1) -> int:
    """Peak bytes of a step: from the allocator of the GPU, on CPUs from the live storages.

    Each thread that calls GEMMs has a cuBLAS workspace, so the replay makes as many as the original had.
    """
    if any(tensor.is_cuda for tensor in inputs):
        synchronize()
        _renew_workspaces(threads)
        torch.cuda.reset_peak_memory_stats()
        step()
        synchronize()
        return int(torch.cuda.max_memory_allocated())
    with Storages() as storages:
        storages.see(inputs)
        step()
    return int(storages.peak)


def _renew_workspaces(threads: int) -> None:
    """Make the cuBLAS workspaces of that many threads, less the one that the step itself will make."""
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
