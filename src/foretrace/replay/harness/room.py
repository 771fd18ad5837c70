"""Whether the step fits into memory, asked before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container's own bound stands."""


def refuse_what_does_not_fit(memory: dict[str, Any], kind: str, ranks: int = 1) -> None:
    """Raise a MemoryError that says what would fit, where the step of so many ranks would not.

    ``memory`` has the bytes of the ``peak``, those of it that are ``lasting`` in any batch, and the ``batch`` or None.

    >>> refuse_what_does_not_fit({"peak": 1024, "lasting": 512, "batch": 8}, "cpu")
    """
    free, peak = free_bytes(kind), memory["peak"]
    if free is None or peak * ranks <= free:
        return
    each = f" on each of {ranks} ranks" if ranks > 1 else ""
    batch = _fitting_batch(memory, free // ranks)
    lasting = "" if batch else f", {size(memory['lasting'])} of it in any batch"
    fewer = [f"--ranks {free // peak}"] if peak <= free else []
    raise MemoryError(
        f"the step needs {size(peak)} at its peak{each}{lasting}, and {size(free)} are free on this {kind}; "
        f"what would fit: {', '.join([*batch, *fewer, '--device meta'])}"
    )


def _fitting_batch(memory: dict[str, Any], free: int) -> list[str]:
    """The largest batch that fits; none where not even one sample does.

    >>> _fitting_batch({"peak": 100, "lasting": 20, "batch": 64}, 60)
    ['--batch 32 (it is 64)']
    >>> _fitting_batch({"peak": 100, "lasting": 20, "batch": None}, 60), _fitting_batch({"peak": 9, "lasting": 8}, 5)
    (["a batch of 50 % of the original's"], [])
    """
    spare, growing = free - memory["lasting"], memory["peak"] - memory["lasting"]
    batch = memory.get("batch")
    if spare <= 0 or spare * (batch or 100) < growing:
        return []
    share = spare * (batch or 100) // growing
    return [f"--batch {share} (it is {batch})" if batch else f"a batch of {share} % of the original's"]


def free_bytes(kind: str) -> int | None:
    """Bytes that are free on a kind of device; None where there is no limit, or nobody knows it."""
    if kind == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    if kind == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        try:
            lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
            free = int(lines["MemAvailable"].split()[0]) * 1024
        except (OSError, KeyError, ValueError):
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min([free, *_limits()])
    return None


def _limits() -> Iterator[int]:
    """How much a container may have in all."""
    for path in LIMITS:
        with suppress(OSError, ValueError):  # another kind of machine; no limit, which is said in a word
            yield int(Path(path).read_text())


def size(nbytes: float) -> str:
    """Bytes for a reader.

    >>> size(3 << 30), size(1500)
    ('3.0 GiB', '1.5 KiB')
    """
    if nbytes >= 1024 ** len(UNITS):
        return f"more than 1024 {UNITS[-1]}"
    power = min(int(math.log(max(nbytes, 1), 1024)), len(UNITS) - 1)
    return f"{nbytes / 1024**power:.1f} {UNITS[power]}"
