"""The measured device: what driver and system report of it, whether it may be measured now, how its streams work."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from foretrace.calibration.device_facts import DeviceFacts
from foretrace.errors import ForetraceError

DRIVER_FIELDS = ("driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "utilization.gpu")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_INFO = Path("/proc/cpuinfo")
UNKNOWN_MHZ = 2000.0
UNKNOWN_CACHE_MB = 32.0
"""Stand-ins where a system hides its clocks and caches: models are fitted on this device and learn what they mean."""
BUSY_PERCENT = 10.0
"""Utilization from which a GPU with other processes on it counts as busy."""
THROTTLE_REASONS = {
    "clocks_event_reasons.hw_thermal_slowdown": "it is too hot",
    "clocks_event_reasons.sw_thermal_slowdown": "it is near its highest temperature",
    "clocks_event_reasons.hw_power_brake_slowdown": "its power supply holds it back",
}
LAUNCHES = 300
"""Kernels that gaps and latencies are taken from."""
GAP_ELEMENTS = 12_000_000
"""Elements of the tensor behind whose kernels gaps are taken: kernels of some tens of microseconds, as device-bound
steps have them. Behind tiny kernels the gap is a third shorter."""
PAUSE_CYCLES = 2 * 10**8
"""How long the stream is blocked while the queue behind it fills: a tenth of a second."""
MAX_QUEUED = 8192
BLOCKED_SECONDS = 5e-3
"""A launch call that takes this long was stopped by a full queue."""


def find_device(name: str | None = None) -> Any:
    """The device to measure: the one that is named, or else the first GPU, or else the CPU.

    >>> find_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ForetraceError(f"{name!r} is no device", "Name one like cuda:0 or cpu.") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = {"cpu": 1, "cuda": gpus}.get(device.type, 0)
    if not there:
        raise ForetraceError(f"this PyTorch cannot use {name}", "Measure cpu, or install a build for that device.")
    if (device.index or 0) >= there:
        raise ForetraceError(f"there is no {name} here", f"The last one is {device.type}:{there - 1}.")
    return device


def is_gpu(device: Any) -> bool:
    """Whether a torch device launches kernels; else it is a CPU, where a call is over when it returns."""
    return str(device.type) == "cuda"


def synchronize(device: Any) -> None:
    """Wait until a device is idle."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def release_memory(device: Any) -> None:
    """Give cached memory of a GPU back, for other processes."""
    if is_gpu(device):
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def device_name(device: Any) -> str:
    """The driver's name for a device."""
    return str(torch.cuda.get_device_name(device)) if is_gpu(device) else f"{platform.machine()} CPU"


def machine_facts(device: Any) -> dict[str, Any]:
    """Device name, versions, date and, on a GPU, clocks and temperature at this moment.

    >>> sorted(machine_facts(torch.device("cpu")))
    ['device', 'made', 'threads', 'torch']
    """
    made = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    known = {"device": device_name(device), "torch": str(torch.__version__), "made": made}
    if not is_gpu(device):
        return {**known, "threads": torch.get_num_threads()}
    answers = query_driver(device, *DRIVER_FIELDS)
    driver = dict(zip(DRIVER_FIELDS, answers[0])) if answers else {}
    return {**known, "cuda": str(torch.version.cuda), "cudnn": torch.backends.cudnn.version(), **driver}


def query_driver(device: Any, *fields: str, of: str = "gpu") -> list[list[str]]:
    """Answers of nvidia-smi, a list of the fields per line; empty where it is missing or does not know a field.

    The device is queried by its UUID: the driver numbers devices in another order than PyTorch. With ``compute-apps``
    in place of ``gpu`` there is a line per process.
    """
    which = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--id={which}", f"--query-{of}={','.join(fields)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in answer.splitlines()]


def health_problems(device: Any) -> list[str]:
    """Why a GPU should not be measured now: it is throttled, or other processes use it; empty where that is unknown."""
    if not is_gpu(device):
        return []
    answers = query_driver(device, *THROTTLE_REASONS)
    reasons = zip(answers[0], THROTTLE_REASONS.values()) if answers else ()
    found = [f"the device is throttled: {why}" for answer, why in reasons if answer == "Active"]
    used, others = _percent_used(device), _other_processes(device)
    if others and used > BUSY_PERCENT:
        found.append(f"the device is busy: used {used:.0f} % of the last second, with {others} other on it")
    return found


def _percent_used(device: Any) -> float:
    """Utilization of the last second, by any process."""
    answers = query_driver(device, "utilization.gpu")
    percent = answers[0][0].removesuffix(" %") if answers else ""
    return float(percent) if percent.isdecimal() else 0.0


def _other_processes(device: Any) -> int:
    """Number of other processes on the device. In a container this one may have another id than the driver knows."""
    there = {line[0] for line in query_driver(device, "pid", of="compute-apps")}
    me = str(os.getpid())
    under_another_id = me not in there and torch.cuda.memory_reserved(device) > 0
    return max(0, len(there - {me}) - under_another_id)


def device_facts(device: Any) -> DeviceFacts:
    """What driver or system report of a device, and how its streams work.

    >>> known = device_facts(torch.device("cpu"))
    >>> known.kind, known.sms > 0, known.memory_gb > 0
    ('cpu', True, True)
    """
    machine = {name: str(value) for name, value in machine_facts(device).items()}
    described = _gpu_facts(device) if is_gpu(device) else _cpu_facts()
    return DeviceFacts(device.type, device_name(device), machine=machine, **described, **measure_stream(device))


def _cpu_facts() -> dict[str, Any]:
    clock = _cpu_clock_mhz()
    return {
        "sms": torch.get_num_threads(),
        "clock_mhz": clock,
        "memory_clock_mhz": clock,
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "l2_mb": _largest_cache_mb(),
    }


def _cpu_clock_mhz() -> float:
    try:
        seen = re.findall(r"cpu MHz\s*:\s*([\d.]+)", CPU_INFO.read_text())
    except OSError:
        seen = []
    return max(map(float, seen), default=UNKNOWN_MHZ)


def cpu_model() -> str:
    """The model name of the CPU, where the system reports one."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _largest_cache_mb() -> float:
    units = {"K": 1 / 1024, "M": 1.0}
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    found = [float(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units]
    return max(found, default=UNKNOWN_CACHE_MB)


def _gpu_facts(device: Any) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    clock, memory_clock = _max_clocks_mhz(device)
    return {
        "sms": properties.multi_processor_count,
        "clock_mhz": clock,
        "memory_clock_mhz": memory_clock,
        "memory_gb": properties.total_memory / 1e9,
        "l2_mb": properties.L2_cache_size / 2**20,
    }


def _max_clocks_mhz(device: Any) -> tuple[float, float]:
    """The highest clocks of processors and memory."""
    answers = query_driver(device, "clocks.max.sm", "clocks.max.memory")
    try:
        clock, memory_clock = (float(field.removesuffix(" MHz")) for field in answers[0])
    except (IndexError, ValueError):
        return UNKNOWN_MHZ, UNKNOWN_MHZ
    return clock, memory_clock


def measure_stream(device: Any) -> dict[str, Any]:
    """Gap between kernels, latency of a launch and depth of the launch queue, for `DeviceFacts`; nothing on a CPU."""
    if not is_gpu(device):
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
    many = torch.zeros(GAP_ELEMENTS, device=one.device)
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
    """Kernels that can be launched behind a running one before a launch call has to wait."""
    torch.cuda._sleep(PAUSE_CYCLES)
    queued, took = 0, 0.0
    while took < BLOCKED_SECONDS and queued < MAX_QUEUED:
        begun = time.perf_counter()
        one.add_(1)
        took = time.perf_counter() - begun
        queued += 1
    torch.cuda.synchronize()
    return queued
