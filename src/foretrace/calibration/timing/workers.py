"""Worker processes that let libraries plan their kernels at once, and then measure one after the other.

For a shape that it has not seen, cuDNN takes up to a tenth of a second of host time to choose its kernels, and a few
milliseconds to run them. Choosing needs no quiet device, and each process remembers what was chosen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from foretrace.calibration.timing.call import Call
from foretrace.calibration.timing.device import is_gpu, release_memory
from foretrace.calibration.timing.kernels import CaseRange, fill_batch, reference_case
from foretrace.calibration.timing.timer import REFUSALS, is_fatal, tf32_setting, time_cases
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import Batch, close_batch, open_batch
from foretrace.processes import exit_with_parent

START_SECONDS = 20.0
"""How long workers take to start, while the main process measures other families."""
ROUND_SECONDS = 20.0
"""Longest round of planning and measuring."""
WORKER_BYTES = 8 * 2**30
"""Device memory of a worker, for itself and the tensors of a case."""
SPARE_PROCESSORS = 2
"""Processors that are left to the main process."""
PROGRAM = "import sys; from foretrace.calibration.timing.workers import serve; serve(*map(int, sys.argv[1:]))"
GONE = (EOFError, OSError)
"""Raised on this side of a pipe when the process on the other side has ended."""


@dataclass(eq=False)
class Worker:
    """One of the processes, and the pipe to it."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    started: bool = False


@dataclass
class Pace:
    """Seconds a case: of planning, which all workers do at once, and of measuring, which only one does at a time."""

    plan: float = 1.0
    measure: float = 1.0

    def planning(self, seconds: float, workers: int) -> float:
        """How long to plan, so that measuring all planned cases is over after so many seconds.

        >>> round(Pace(plan=0.03, measure=0.01).planning(15.0, workers=12), 6)
        3.0
        """
        return seconds * self.plan / (self.plan + workers * self.measure)


class Workers:
    """Processes that plan at once; for a ``with`` statement, after which they have ended.

    A worker that fails loses the cases that it has planned; the others go on.
    """

    def __init__(self, device: Any, count: int) -> None:
        self.device = device
        self.workers = [_start(device) for _ in range(count)]
        self._pace: dict[str, Pace] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.process.kill()
        for worker in list(self.workers):
            self._remove(worker)

    @property
    def ready(self) -> bool:
        """Whether all have started."""
        for worker in list(self.workers):
            with self._unless_gone(worker):
                if not worker.started and worker.pipe.poll():
                    worker.started = worker.pipe.recv()
        return bool(self.workers) and all(worker.started for worker in self.workers)

    def measure(self, path: Path, cases: CaseRange, machine: dict[str, Any], until: float) -> Iterator[Batch]:
        """A round: all workers plan, then one after the other measures; each batch is written as soon as it is there.

        The cases are those of the first worker; those of the others follow. A long round is over before ``until``, a
        time of `time.monotonic`.
        """
        length = cases.last - cases.first
        firsts = range(cases.first, cases.first + length * len(self.workers), length)
        parts = {worker: replace(cases, first=n, last=n + length) for worker, n in zip(self.workers, firsts)}
        pace = self._pace.setdefault(cases.family, Pace())
        counts = self._plan(parts, pace, min(ROUND_SECONDS, until - time.monotonic()))
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

    def _plan(self, parts: dict[Worker, CaseRange], pace: Pace, seconds: float) -> list[int]:
        """How many cases each worker has planned."""
        if is_gpu(self.device):
            torch.cuda.empty_cache()  # for the workers
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
        """Go on without a worker that has ended."""
        try:
            yield
        except GONE:
            self._remove(worker)

    def _remove(self, worker: Worker) -> None:
        worker.pipe.close()
        worker.process.kill()
        worker.process.wait()
        if worker in self.workers:
            self.workers.remove(worker)


def workers_for(device: Any, seconds: float) -> int:
    """How many workers are worth starting for so many seconds of work: as processors and device memory allow.

    >>> workers_for(torch.device("cpu"), 600.0)
    0
    """
    if not is_gpu(device) or seconds < START_SECONDS:
        return 0
    processors = len(os.sched_getaffinity(0)) - SPARE_PROCESSORS
    fit = min(processors, torch.cuda.mem_get_info(device)[1] // WORKER_BYTES)
    return fit if fit > 1 else 0


def _start(device: Any) -> Worker:
    """A new Python, which does not run the user's script again as those of `multiprocessing` do."""
    connection, child_end = Pipe()
    with child_end:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(child_end.fileno()), str(os.getpid())],
            pass_fds=[child_end.fileno()],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # Ctrl-C goes to the main process, which ends them
        )
    connection.send(device)
    return Worker(process, connection)


def serve(handle: int, parent: int) -> None:
    """Main function of a worker: rounds, as `Workers` of process ``parent`` asks for them, until the pipe closes."""
    exit_with_parent(parent)
    pipe = Connection(handle)
    torch.set_num_threads(1)
    try:
        device = pipe.recv()
        time_cases([reference_case(device)], device)
        pipe.send(True)
        while True:
            cases, seconds, memory = pipe.recv()
            planned = plan_cases(cases, device, seconds, memory)
            pipe.send(len(planned))
            batch = pipe.recv()
            fill_batch(batch, planned, device)
            release_memory(device)
            pipe.send(batch)
    except (EOFError, BrokenPipeError):
        return  # the main process has closed the pipe
    except RuntimeError as error:
        message = str(error).strip().split("\n")[0]
        print(f"foretrace: a worker process has failed, the others go on ({message})", file=sys.stderr)


def plan_cases(cases: Iterable[Case], device: Any, seconds: float, memory: float) -> list[Case]:
    """Make each case once, for so many seconds, with a share of the device's memory; the cases that there was time for.

    A case that fails here fails again when it is measured, and is recorded then.

    >>> planned = plan_cases(CaseRange("fills", 0, 3, 4096, "cpu"), torch.device("cpu"), seconds=60.0, memory=0.1)
    >>> len(planned)
    3
    """
    _limit_memory(device, memory)
    until = time.monotonic() + seconds
    planned: list[Case] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            if planned and time.monotonic() > until:
                break
            planned.append(case)
            try:
                with tf32_setting(case):
                    Call(case, device)()
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            except REFUSALS as error:
                if is_fatal(error):
                    raise
    release_memory(device)
    _limit_memory(device, 1.0)
    return planned


def _limit_memory(device: Any, share: float) -> None:
    """Limit the device memory of this process."""
    if is_gpu(device):
        torch.cuda.set_per_process_memory_fraction(share, device)
