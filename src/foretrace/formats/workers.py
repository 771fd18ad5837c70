"""Worker processes that read a part of the files, so that every core is used."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from foretrace.processes import exit_with_parent

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_WORKERS = 4
"""More processes than this would wait for the process that feeds them."""
RESULT_TIMEOUT_S = 60.0
"""How long to wait for a result, which takes a tenth of a second, or a few seconds for many small files."""


def usable_cores() -> int:
    """How many processes can work at once; one where forking is not safe."""
    return min(MAX_WORKERS, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


class Worker(Generic[Task, Result]):
    """A forked process that works on one task at a time. A task whose result does not arrive is done in this process.

    Because it is forked, it starts at once, has ``work`` as it is here, and never runs the caller's script again.

    >>> worker = Worker(str.upper)
    >>> worker.submit("trace")
    >>> worker.result(), worker.result()
    ('TRACE', None)
    >>> worker.stop()
    """

    def __init__(self, work: Callable[[Task], Result]) -> None:
        self._work = work
        self._submitted: Task | None = None
        self._responds = True
        tasks_read, tasks_write = os.pipe()
        results_read, results_write = os.pipe()
        parent = os.getpid()
        self._process = os.fork()
        if not self._process:
            os.close(tasks_write)
            os.close(results_read)
            _serve(work, tasks_read, results_write, parent)
        os.close(tasks_read)
        os.close(results_write)
        self._tasks, self._results = os.fdopen(tasks_write, "wb"), os.fdopen(results_read, "rb")

    def submit(self, task: Task) -> None:
        """Start a task, once the result of the one before has been fetched."""
        self._submitted = task
        with suppress(OSError):
            if self._responds:
                pickle.dump(task, self._tasks, pickle.HIGHEST_PROTOCOL)
                self._tasks.flush()

    def result(self) -> Result | None:
        """The result of the last task; None if there was none."""
        if self._submitted is None:
            return None
        task, self._submitted = self._submitted, None
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            if self._responds and select.select([self._results], [], [], RESULT_TIMEOUT_S)[0]:
                result: Result = pickle.load(self._results)
                return result
        # It died, or hit an error that will occur here as well. A late result must not be taken for the next one.
        self._responds = False
        return self._work(task)

    def stop(self) -> None:
        """End the process."""
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        for pipe in (self._tasks, self._results):
            with suppress(OSError):
                pipe.close()


def _serve(work: Callable[[Task], Result], tasks: int, results: int, parent: int) -> None:
    """Work until there are no more tasks or something fails; never return to what the parent was doing."""
    with suppress(BaseException), os.fdopen(tasks, "rb") as given, os.fdopen(results, "wb") as done:
        exit_with_parent(parent)
        while True:
            pickle.dump(work(pickle.load(given)), done, pickle.HIGHEST_PROTOCOL)
            done.flush()
    os._exit(0)


def parallel_map(work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
    """The results of all tasks, in order; workers do their share while this process does its own.

    >>> parallel_map(str.upper, ["a", "b", "c"])
    ['A', 'B', 'C']
    """

    def do(share: Sequence[Task]) -> list[Result]:
        return [work(task) for task in share]

    count = min(usable_cores(), len(tasks)) or 1
    mine, *others = (tasks[first::count] for first in range(count))
    workers = [Worker(do) for _ in others]
    try:
        for worker, share in zip(workers, others):
            worker.submit(share)
        done = [do(mine), *(worker.result() or [] for worker in workers)]
    finally:
        for worker in workers:
            worker.stop()
    return [done[i % count][i // count] for i in range(len(tasks))]
