"""What the driver or the system knows of a device."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

from foretrace.platform.device_facts import DeviceFacts
from foretrace.platform.measure.machine import device_name, driver_says, facts
from foretrace.platform.measure.stream import measure_stream

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPU_INFO = Path("/proc/cpuinfo")
UNKNOWN_MHZ = 2000.0
UNKNOWN_CACHE_MB = 32.0
"""Stand-ins where a system hides its clocks and caches: models are fitted on this device and learn what they mean."""


def device_facts(device: Any) -> DeviceFacts:
    """The device as it describes itself, and how work passes through its streams.

    >>> known = device_facts(torch.device("cpu"))
    >>> known.kind, known.sms > 0, known.memory_gb > 0
    ('cpu', True, True)
    """
    machine = {name: str(value) for name, value in facts(device).items()}
    described = _cpu() if device.type == "cpu" else _gpu(device)
    return DeviceFacts(device.type, device_name(device), machine=machine, **described, **measure_stream(device))


def _cpu() -> dict[str, Any]:
    clock = _cpu_clock()
    return {
        "sms": torch.get_num_threads(),
        "clock_mhz": clock,
        "memory_clock_mhz": clock,
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "l2_mb": _largest_cache_mb(),
    }


def _cpu_clock() -> float:
    try:
        seen = re.findall(r"cpu MHz\s*:\s*([\d.]+)", CPU_INFO.read_text())
    except OSError:
        seen = []
    return max(map(float, seen), default=UNKNOWN_MHZ)


def _largest_cache_mb() -> float:
    units = {"K": 1 / 1024, "M": 1.0}
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]
    found = [float(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units]
    return max(found, default=UNKNOWN_CACHE_MB)


def _gpu(device: Any) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    clock, memory_clock = _most_clocks(device)
    return {
        "sms": properties.multi_processor_count,
        "clock_mhz": clock,
        "memory_clock_mhz": memory_clock,
        "memory_gb": properties.total_memory / 1e9,
        "l2_mb": properties.L2_cache_size / 2**20,
    }


def _most_clocks(device: Any) -> tuple[float, float]:
    """The highest clocks of processors and memory in MHz, as the driver gives them."""
    said = driver_says(device, "clocks.max.sm", "clocks.max.memory")
    try:
        clock, memory_clock = (float(words.removesuffix(" MHz")) for words in said[0])
    except (IndexError, ValueError):
        return UNKNOWN_MHZ, UNKNOWN_MHZ
    return clock, memory_clock
