"""Processes that take turns: each stays as it is between them, so that what they do can alternate at no cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any, NamedTuple

DONE = b"done"


class Command(NamedTuple):
    """What to start as one process of a crew."""

    words: list[str]
    special: dict[str, str]
    """In its environment."""
    processors: set[int]
    """That it keeps to."""


def shares(each: int) -> list[set[int]]:
    """The processors that this process may use, so many a share: those of one core, where the system tells, in one."""
    ours = sorted(os.sched_getaffinity(0), key=lambda number: (*_core(number), number))
    return [set(ours[first : first + each]) for first in range(0, len(ours) - each + 1, each)]


def _core(processor: int) -> tuple[int, ...]:
    """Its package and its core in that, as the system numbers them."""
    told = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
    files = [told / "physical_package_id", told / "core_id"]
    return tuple(int(file.read_text()) for file in files if file.exists())


class Crew:
    """Processes that do what they are told, all at once.

    Parameters
    ----------
    commands
        What to start.
    common
        The environment of all.
    log
        The file that they write what they have to say to.
    """

    def __init__(self, commands: Sequence[Command], common: dict[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._processors = [one.processors for one in commands]
        with log.open("ab") as said:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": said}
            self._running: list[subprocess.Popen[bytes]] = [
                subprocess.Popen(one.words, env=common | one.special, bufsize=0, **pipes) for one in commands
            ]

    @property
    def works(self) -> bool:
        """Whether all of them are there to be told something."""
        return all(process.poll() is None for process in self._running)

    def settle(self) -> None:
        """Let each keep to its processors from now on, with all its threads; started they are sooner on any."""
        for process, processors in zip(self._running, self._processors):
            for thread in Path(f"/proc/{process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), processors)

    def do(self, words: str, seconds: float) -> None:
        """Let all of them do something for so long at most. One that does not ends the crew."""
        if not self.works:
            return
        began = time.monotonic()
        for process in self._running:
            _pipe(process.stdin).write(f"{words}\n".encode())
        whole = self._all_done(began + seconds)
        print(f"{self._log.stem}: {words}: {time.monotonic() - began:.1f} s{'' if whole else ', not done'}", flush=True)
        if not whole:
            print("\n".join(self._log.read_text(errors="replace").splitlines()[-12:]), flush=True)
            self.end()

    def _all_done(self, until: float) -> bool:
        with DefaultSelector() as waiting:
            for process in self._running:
                waiting.register(_pipe(process.stdout), EVENT_READ)
            while waiting.get_map():
                ready = waiting.select(max(until - time.monotonic(), 0.0))
                if not ready:
                    return False
                for key, _ in ready:
                    if not os.read(key.fd, 64).startswith(DONE):
                        return False
                    waiting.unregister(key.fileobj)
        return True

    def end(self) -> None:
        """Let them go."""
        for process in self._running:
            process.kill()
            process.wait()


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


def turns() -> Iterator[list[str]]:
    """In a process of a crew: the words of each turn. Whoever asks for the next one is done with the last."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        yield line.split()
        os.write(answer, DONE)
