"""Whether a GPU is fit to be measured: who else uses it, and whether it holds itself back."""

from __future__ import annotations

import subprocess
from typing import Any

BUSY = 10.0
"""Percent of the time that a GPU may be in use before measuring begins."""
SLOWED_BY = {
    "clocks_event_reasons.hw_thermal_slowdown": "it is too hot",
    "clocks_event_reasons.sw_thermal_slowdown": "it is near its highest temperature",
    "clocks_event_reasons.hw_power_brake_slowdown": "its power supply holds it back",
}


def complaints(device: Any) -> list[str]:
    """What speaks against measuring a GPU now, in words; nothing where nobody can tell.

    >>> import torch
    >>> complaints(torch.device("cpu"))
    []
    """
    if device.type != "cuda":
        return []
    answers = _asked(device, *SLOWED_BY)
    found = [f"the device is throttled: {why}" for asked, why in SLOWED_BY.items() if answers.get(asked) == "Active"]
    used = _asked(device, "utilization.gpu").get("utilization.gpu", "")
    if used.isdecimal() and float(used) > BUSY:
        found.append(f"the device is busy: something else used it {used} % of the last second")
    return found


def _asked(device: Any, *fields: str) -> dict[str, str]:
    """The driver's answers; none where it knows one of the questions not."""
    command = ["nvidia-smi", f"--id={device.index or 0}", f"--query-gpu={','.join(fields)}"]
    try:
        done = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (part.strip() for part in done.stdout.split(","))))
