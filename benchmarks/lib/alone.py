"""Processes that share a GPU: any of them may have it alone for a while."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TIMED_ON = range(4, 8)
"""Processors for all that is timed: some have busier neighbours than others."""


class Machine:
    """The processes whose ids a file ``workers`` in a folder lists: those that do not measure are stopped meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._lock = (folder / "alone.lock").open("a")
        self._workers = folder / "workers"
        self._others: list[int] = []

    def list_workers(self, processes: Iterable[int]) -> None:
        """Say who shares it."""
        self._workers.write_text("\n".join(map(str, processes)))

    def take(self) -> None:
        """Stop all others."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._others = [int(line) for line in self._workers.read_text().split() if int(line) != os.getpid()]
        _send(self._others, signal.SIGSTOP)
        _stay_on(TIMED_ON)
        time.sleep(0.05)

    def leave(self) -> None:
        """Let the others go on."""
        _stay_on(range(os.cpu_count() or 1))
        _send(self._others, signal.SIGCONT)
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing else runs meanwhile."""
        self.take()
        try:
            yield
        finally:
            self.leave()


def _stay_on(processors: Iterable[int]) -> None:
    """Run all threads of this process on some processors, as far as the machine has them."""
    there = set(processors) & set(range(os.cpu_count() or 1)) or {0}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            os.sched_setaffinity(int(thread.name), there)


def _send(processes: list[int], what: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, what)
