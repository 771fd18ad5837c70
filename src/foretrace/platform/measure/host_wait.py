"""Letting the host wait for a device that is busy."""

from __future__ import annotations

import torch

WAITS_MS = (1.0, 4.0, 15.0, 60.0)
"""How long the host waits: as in steps that the device decides, short ones and long ones."""
CYCLES_A_MS = 1.8e6
"""About how many cycles of its clock a GPU does in a millisecond."""


def wait_for_device(ms: float) -> float:
    """Keep the device busy for about so many milliseconds, and wait for it; how long it was."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    torch.cuda._sleep(round(ms * CYCLES_A_MS))
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))
