"""Whether the step fits into memory, asked before anything is allocated."""

from __future__ import annotations

import math
import os

import torch

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def refuse_what_does_not_fit(peak_bytes: int, kind: str, ranks: int = 1) -> None:
    """Raise a MemoryError that says what would fit, where the step of so many ranks would not.

    >>> refuse_what_does_not_fit(1024, "cpu")
    """
    free = free_bytes(kind)
    if free is not None and peak_bytes * ranks > free:
        share, fit = free / peak_bytes / ranks, int(free / peak_bytes)
        each = f" on each of {ranks} ranks" if ranks > 1 else ""
        fewer = f", --ranks {fit}" if 0 < fit < ranks else ""
        raise MemoryError(
            f"the step needs {size(peak_bytes)} at its peak{each}, and {size(free)} are free on this {kind}; "
            f"a batch of {share:.0%} of the original's{fewer}, or --device meta, would fit"
        )


def free_bytes(kind: str) -> int | None:
    """Bytes that are free on a kind of device; None where there is no limit, or nobody knows it."""
    if kind == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    if kind == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        try:
            with open("/proc/meminfo") as told:  # noqa: PTH123
                lines = dict(line.split(":", 1) for line in told)
            return int(lines["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def size(nbytes: float) -> str:
    """Bytes for a reader.

    >>> size(3 << 30), size(1500)
    ('3.0 GiB', '1.5 KiB')
    """
    power = min(int(math.log(max(nbytes, 1), 1024)), len(UNITS) - 1)
    return f"{nbytes / 1024**power:.1f} {UNITS[power]}"
