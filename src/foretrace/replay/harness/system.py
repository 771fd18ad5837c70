"""GPU power and clocks from NVML, and hardware counters from Nsight Compute.

Neither is needed to run a benchmark: where NVML is missing, or counters are locked, they are left out.
"""

from __future__ import annotations

import csv
import ctypes
import io
import math
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

METRICS = {
    "sm_active": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "tensor_core_active": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "dram_gbps": "dram__bytes.sum.per_second",
    "l2_hit": "lts__t_sector_hit_rate.pct",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Metrics of Nsight Compute; each is averaged over kernels, weighted by their time."""
DURATION = "gpu__time_duration.sum"
MARK = "spin_kernel"
"""Kernel that `mark_step` launches."""
NCU_PATHS = ("/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu")
SECONDS = 2.0
"""How long power and clock are averaged."""
NANO = 1e-9
SAMPLES = 40
"""Calls of a step that Nsight Compute profiles: each of their kernels takes it a while."""


class Nvml:
    """Energy and clock of a GPU from its driver; `found` is False where NVML is not available."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        try:
            self._library: Any = ctypes.CDLL("libnvidia-ml.so.1")
            self.found = self._library.nvmlInit_v2() == 0 and self._find() == 0
        except (OSError, AttributeError):
            self.found = False

    def _find(self) -> int:
        """Find the GPU by UUID: the driver also numbers GPUs that this process may not see."""
        place = ctypes.byref(self._handle)
        name = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
        if name is not None and self._library.nvmlDeviceGetHandleByUUID(f"GPU-{name}".encode(), place) == 0:
            return 0
        return int(self._library.nvmlDeviceGetHandleByIndex_v2(torch.cuda.current_device(), place))

    def energy_mj(self) -> int | None:
        """Energy used since the driver was loaded."""
        return self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong())

    def clock_mhz(self) -> int | None:
        """Current clock of the multiprocessors."""
        return self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint(), 1)

    def _ask(self, question: str, value: Any, *which: int) -> int | None:
        failed = not self.found or getattr(self._library, question)(self._handle, *which, ctypes.byref(value))
        return None if failed else int(value.value)


def power_and_clock(step: Callable[[], Any], wait: Callable[[], None]) -> dict[str, float]:
    """Mean power and clock while a step is repeated; empty without NVML."""
    nvml = Nvml()
    energy = nvml.energy_mj()
    if energy is None:
        return {}
    clocks = []
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        step()
        wait()
        clocks.append(nvml.clock_mhz() or 0)
    spent = time.perf_counter() - began
    return {"power_w": ((nvml.energy_mj() or energy) - energy) / 1e3 / spent, "clock_mhz": sum(clocks) / len(clocks)}


def ncu() -> str | None:
    """Path of Nsight Compute; None if it is not installed."""
    return shutil.which("ncu") or next((place for place in NCU_PATHS if Path(place).exists()), None)


class SampledProfiling(TorchDispatchMode):
    """Lets Nsight Compute profile every n-th call of each operator: the same ones in a step and in its replay."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self.seen[name] += 1
        if (self.seen[name] - 1) % self.every:
            return func(*args, **(kwargs or {}))
        torch.cuda.profiler.start()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.cuda.profiler.stop()


def counted_step(
    step: Callable[[], Any], calls: int, watch: Callable[[int], AbstractContextManager[Any]] = SampledProfiling
) -> None:
    """Run a step of that many calls with some of them profiled, for `counters`."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with watch(max(calls // SAMPLES, 1)):
        step()
    torch.cuda.synchronize()


def counters(command: Sequence[str], timeout_s: float = 300.0) -> list[dict[str, Any]]:
    """Mean of each metric over the profiled kernels of each step of a program, weighted by their time; or an ``error``.

    ``command`` are arguments of Python; the program calls `counted_step`, and `mark_step` between the steps.
    """
    tool = ncu()
    if tool is None:
        return [{"error": "Nsight Compute (ncu) is not installed"}]
    # Clocks and caches are left as they are in a step. So the program is run once for each group of counters: a kernel
    # replayed several times would find the caches as restoring its memory left them.
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--cache-control", "none"]
    options += ["--replay-mode", "application"]
    options += ["--profile-from-start", "off", "--metrics", ",".join([DURATION, *METRICS.values()])]
    try:
        done = subprocess.run(
            [tool, *options, "--target-processes", "all", sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return [{"error": f"Nsight Compute took longer than {timeout_s:.0f} s"}]
    found = averages(done.stdout)
    if not found:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERR" in line or "rror" in line]
        return [{"error": errors[0] if errors else f"Nsight Compute counted nothing (exit code {done.returncode})"}]
    return found


def mark_step() -> None:
    """Mark the end of a profiled step."""
    torch.cuda.profiler.start()
    torch.cuda._sleep(1000)
    torch.cuda.profiler.stop()


def averages(text: str) -> list[dict[str, Any]]:
    """Metrics of each step in a table printed by Nsight Compute.

    >>> head = '"ID","Kernel Name","gpu__time_duration.sum","lts__t_sector_hit_rate.pct"'
    >>> rows = ['"","","ns","%"', '"0","a","30000","50"', '"1","b","10000","90"', '"2","spin_kernel","9","0"']
    >>> averages("\\n".join(["==PROF== hello", head, *rows, '"3","a","20000","70"']))
    [{'kernels': 2, 'kernel_us': 40.0, 'l2_hit': 60.0}, {'kernels': 1, 'kernel_us': 20.0, 'l2_hit': 70.0}]
    """
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    _units, *rows = list(csv.DictReader(io.StringIO("\n".join(lines[first:]))))
    steps: list[list[dict[str, str]]] = [[]]
    for row in rows:
        if MARK in (row.get("Kernel Name") or ""):
            steps.append([])
        else:
            steps[-1].append(row)
    return [_average(step) for step in steps if step]


def _average(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    weights = [_number(row.get(DURATION)) or 0.0 for row in rows]
    found: dict[str, Any] = {"kernels": len(rows), "kernel_us": sum(weights) / 1e3}
    for field, metric in METRICS.items():
        pairs = [(_number(row.get(metric)), weight) for row, weight in zip(rows, weights)]
        # Ratios of counters from different runs of a short kernel can exceed 100 %.
        most = 100.0 if ".pct" in metric else math.inf
        known = [(min(value, most), weight) for value, weight in pairs if value is not None]
        total = sum(weight for _, weight in known)
        if total:
            found[field] = sum(value * weight for value, weight in known) / total
    if "dram_gbps" in found:
        found["dram_gbps"] *= NANO
    return found


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None
