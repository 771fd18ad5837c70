"""Processes that tests start and end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from foretrace.processes import is_alive

PATIENCE_S = 120
"""What a busy machine may take for what takes a second: longer, and something hangs."""


@contextmanager
def started(command: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with a group of its own; what is left of the group ends with the test, however that ends."""
    with subprocess.Popen(command, text=True, start_new_session=True, **how) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:  # grows meanwhile
        found += [child for child, its in parents.items() if its == parent]
    return found[1:]


def wait_until(happened: Callable[[], Any], what: str) -> None:
    """Wait for something that comes soon, and fail where it never comes."""
    patience = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < patience, what
        time.sleep(0.05)


def assert_killed_with(process: subprocess.Popen[str], others: Sequence[int]) -> None:
    """Kill a process: the others end as well."""
    assert others and all(map(is_alive, others))
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        wait_until(lambda: not any(map(is_alive, others)), "processes outlive the one that started them")
    finally:
        for other in filter(is_alive, others):
            os.kill(other, signal.SIGKILL)
