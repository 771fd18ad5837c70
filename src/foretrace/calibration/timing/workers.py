"""Several processes let libraries plan their kernels at once; then one after the other measures.

For a shape that it has not seen, cuDNN takes up to a tenth of a second of the host to choose its kernels, and a few
milliseconds to run them. Choosing needs no quiet device, and each process remembers what was chosen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from foretrace.platform.measure.calibrate import Drawn
from foretrace.platform.measurements import Batch, close_batch, open_batch

STARTING = 20.0
"""Seconds that the processes of a crew take to start, side by side with other measurements."""
ROUND = 20.0
"""Seconds, at most, that a crew plans and measures at a time."""
ROOM = 8 * 2**30
"""Bytes of the device's memory that a process needs, for itself and the tensors of a case."""
SPARED = 2
"""Processors that are left to the process that measures the rest."""
PROGRAM = "import sys; from foretrace.platform.measure.crew_work import work; work(*map(int, sys.argv[1:]))"

GONE = (EOFError, OSError)
"""What is raised on this side of a pipe when the process on the other has ended."""


@dataclass(eq=False)
class Worker:
    """One of the processes, and the pipe to it."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    started: bool = False


@dataclass
class Pace:
    """Seconds a case: of planning, which all do at once, and of measuring, which only one does."""

    plan: float = 1.0
    measure: float = 1.0

    def planning(self, seconds: float, workers: int) -> float:
        """How long to plan, so that measuring what all have planned is over after so many seconds.

        >>> round(Pace(plan=0.03, measure=0.01).planning(15.0, workers=12), 6)
        3.0
        """
        return seconds * self.plan / (self.plan + workers * self.measure)


class Crew:
    """Processes that plan together; for a ``with`` statement, after which they have ended.

    One that fails takes with it what it has planned, and leaves the rest to the others.

    Parameters
    ----------
    device
        What they measure.
    workers
        How many there are; without any the crew is never ready.
    """

    def __init__(self, device: Any, workers: int) -> None:
        self.device = device
        self.workers = [_start(device) for _ in range(workers)]
        self._pace: dict[str, Pace] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.process.kill()
        for worker in list(self.workers):
            self._leave(worker)

    @property
    def ready(self) -> bool:
        """Whether all have started."""
        for worker in list(self.workers):
            with self._unless_gone(worker):
                if not worker.started and worker.pipe.poll():
                    worker.started = worker.pipe.recv()
        return bool(self.workers) and all(worker.started for worker in self.workers)

    def measure(self, path: Path, drawn: Drawn, machine: dict[str, Any], until: float) -> Iterator[Batch]:
        """A round: all plan, then one after the other measures; each batch is written as soon as it is there.

        Parameters
        ----------
        path
            The file that is written to.
        drawn
            The cases of one worker; those of the others follow.
        machine
            What is kept of the machine with each batch.
        until
            Time of `time.monotonic` when the round should be over; a long one is over before.
        """
        length = drawn.last - drawn.first
        firsts = range(drawn.first, drawn.first + length * len(self.workers), length)
        parts = {worker: replace(drawn, first=n, last=n + length) for worker, n in zip(self.workers, firsts)}
        pace = self._pace.setdefault(drawn.family, Pace())
        counts = self._plan(parts, pace, min(ROUND, until - time.monotonic()))
        begun = time.monotonic()
        for worker, part in parts.items():
            batch = Batch(part.first, part.last, machine)
            open_batch(path, batch)
            with self._unless_gone(worker):
                worker.pipe.send(batch)
                batch = worker.pipe.recv()
            if batch.measurements:
                close_batch(path, batch)
            yield batch
        pace.measure = (time.monotonic() - begun) / max(1, sum(counts))

    def _plan(self, parts: dict[Worker, Drawn], pace: Pace, seconds: float) -> list[int]:
        """How many cases each has planned."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # they need the memory
        begun = time.monotonic()
        counts = []
        for worker, part in parts.items():
            with self._unless_gone(worker):
                worker.pipe.send((part, pace.planning(seconds, len(parts)), 1 / (1 + len(parts))))
        for worker in parts:
            with self._unless_gone(worker):
                counts.append(worker.pipe.recv())
        pace.plan = (time.monotonic() - begun) * len(parts) / max(1, sum(counts))
        return counts

    @contextmanager
    def _unless_gone(self, worker: Worker) -> Iterator[None]:
        """Where a worker has ended, go on without it."""
        try:
            yield
        except GONE:
            self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        worker.pipe.close()
        worker.process.kill()
        worker.process.wait()
        if worker in self.workers:
            self.workers.remove(worker)


def workers_for(device: Any, seconds: float) -> int:
    """How many processes are worth starting, where they have so many seconds: as processors and memory allow.

    >>> workers_for(torch.device("cpu"), 600.0)
    0
    """
    if device.type != "cuda" or seconds < STARTING:
        return 0
    processors = len(os.sched_getaffinity(0)) - SPARED
    fit = min(processors, torch.cuda.mem_get_info(device)[1] // ROOM)
    return fit if fit > 1 else 0


def _start(device: Any) -> Worker:
    """A fresh Python: not one that would run the user's script again, as those of `multiprocessing` do."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # Ctrl-C is for us, who end them
        )
    ours.send(device)
    return Worker(process, ours)
