"""What the machine at hand says of itself, for the record."""

from __future__ import annotations

import platform
import subprocess
import time
from typing import Any

import torch

from foretrace.graph import ForetraceError

QUERY = ("driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "utilization.gpu")


def find_device(name: str | None = None) -> Any:
    """The device to measure: the first GPU where there is one, the CPU elsewhere, or the one that is named.

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


def facts(device: Any) -> dict[str, Any]:
    """Names, versions, date and, on a GPU, clocks and temperature at this moment.

    >>> sorted(facts(torch.device("cpu")))
    ['device', 'made', 'threads', 'torch']
    """
    made = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    known = {"device": device_name(device), "torch": str(torch.__version__), "made": made}
    if device.type == "cpu":
        return {**known, "threads": torch.get_num_threads()}
    return {**known, "cuda": str(torch.version.cuda), "cudnn": torch.backends.cudnn.version(), **_driver(device)}


def device_name(device: Any) -> str:
    """What the device calls itself."""
    if device.type == "cpu":
        return f"{platform.machine()} CPU"
    return str(torch.cuda.get_device_name(device))


def _driver(device: Any) -> dict[str, str]:
    said = driver_says(device, *QUERY)
    return dict(zip(QUERY, said[0])) if said else {}


def driver_says(device: Any, *fields: str, of: str = "gpu") -> list[list[str]]:
    """What the driver answers, a list of the fields a line; nothing where it is not there or knows one of them not.

    Parameters
    ----------
    device
        A CUDA device: the driver counts others than PyTorch does, so it is asked by the device's own id.
    fields
        In the words of nvidia-smi; numbers come with their units.
    of
        ``gpu``, or ``compute-apps`` for a line a process.
    """
    which = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--id={which}", f"--query-{of}={','.join(fields)}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in answer.splitlines()]
