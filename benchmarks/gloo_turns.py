"""Processes that take turns: each stays as it is between them, so that what they do can alternate at no cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO

DONE = b"done"


class Crew:
    """Processes that do what they are told, all at once.

    Parameters
    ----------
    commands
        What to start, with what is special in the environment of each.
    common
        The environment of all.
    log
        The file that they write what they have to say to.
    """

    def __init__(self, commands: Sequence[tuple[list[str], dict[str, str]]], common: dict[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("ab") as said:
            self._running = [
                subprocess.Popen(
                    words, env=common | special, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0
                )
                for words, special in commands
            ]

    @property
    def works(self) -> bool:
        """Whether all of them are there to be told something."""
        return all(process.poll() is None for process in self._running)

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
