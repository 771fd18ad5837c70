"""Whether the step fits into memory, asked before anything is allocated; and walls that it meets where it does not."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

try:
    import resource
except ImportError:  # no such limits on this system
    resource = None  # type: ignore[assignment]

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container's own bound stands."""
SLACK, OF_A_THREAD = 1 << 30, 32 << 20
"""Bytes that libraries take for themselves, and for each thread: its stack, and what it allocates from."""
FULL = ("allocate", "memory", "bad_alloc", "primitive")
"""In what failures say where memory ran out: the last one is oneDNN's, which says no more."""


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


def is_full(error: Exception) -> bool:
    """Whether a call may have failed since there was no memory for it.

    >>> is_full(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_full(KeyError("t1"))
    (True, False)
    """
    return isinstance(error, MemoryError) or any(word in str(error) for word in FULL)


@contextmanager
def walled(nbytes: int, kind: str) -> Iterator[bool]:
    """Let no more than so many bytes be taken meanwhile, and what libraries need; False where that can't be held.

    On a GPU that is its memory alone.
    """
    if kind == "cuda":
        total = torch.cuda.mem_get_info()[1]
        most = torch.cuda.memory_reserved() + nbytes + SLACK
        torch.cuda.set_per_process_memory_fraction(min(most / total, 1.0))
        try:
            yield True
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    taken = _data_bytes()
    if taken is None or kind != "cpu":
        yield False
        return
    torch.ones(1 << 20).add_(1)  # starts the threads: one that can't be started ends the process
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = taken + nbytes + SLACK + OF_A_THREAD * torch.get_num_threads()
    others = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most, *others]), before[1]))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def take_no_more_than_free(ranks: int = 1) -> None:
    """Let this process fail rather than take memory that is not there; of so many ranks, its share."""
    taken, free = _data_bytes(), free_bytes("cpu")
    if taken is None or free is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = taken + free // ranks + OF_A_THREAD * torch.get_num_threads()
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _data_bytes() -> int | None:
    """Bytes that this process has for its data; None where no limit can be put on them."""
    if resource is None or sys.platform != "linux":
        return None
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines["VmData"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
