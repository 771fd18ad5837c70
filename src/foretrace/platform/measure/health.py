"""Whether a GPU is fit to be measured: who else uses it, and whether it holds itself back."""

from __future__ import annotations

import os
from typing import Any

import torch

from foretrace.platform.measure.machine import driver_says

BUSY = 10.0
"""Percent of the time that a GPU with other processes on it may be in use before measuring begins."""
SLOWED_BY = {
    "clocks_event_reasons.hw_thermal_slowdown": "it is too hot",
    "clocks_event_reasons.sw_thermal_slowdown": "it is near its highest temperature",
    "clocks_event_reasons.hw_power_brake_slowdown": "its power supply holds it back",
}


def complaints(device: Any) -> list[str]:
    """What speaks against measuring a GPU now, in words; nothing where nobody can tell.

    >>> complaints(torch.device("cpu"))
    []
    """
    if device.type != "cuda":
        return []
    answers = driver_says(device, *SLOWED_BY)
    reasons = zip(answers[0], SLOWED_BY.values()) if answers else ()
    found = [f"the device is throttled: {why}" for answer, why in reasons if answer == "Active"]
    used, strangers = _percent_used(device), _strangers(device)
    if strangers and used > BUSY:
        found.append(f"the device is busy: used {used:.0f} % of the last second, with {strangers} other on it")
    return found


def _percent_used(device: Any) -> float:
    """How much of the last second the device had something to do, be it ours."""
    said = driver_says(device, "utilization.gpu")
    words = said[0][0].removesuffix(" %") if said else ""
    return float(words) if words.isdecimal() else 0.0


def _strangers(device: Any) -> int:
    """Processes on the device but this one, which a container may know by another number than the driver."""
    there = {line[0] for line in driver_says(device, "pid", of="compute-apps")}
    me = str(os.getpid())
    under_another_number = me not in there and torch.cuda.memory_reserved(device) > 0
    return max(0, len(there - {me}) - under_another_number)
