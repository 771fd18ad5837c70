"""Sweeps in several processes of this machine, each of which reads what is swept for itself."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from multiprocessing import active_children, get_context
from types import ModuleType
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.processes import exit_with_parent
from foretrace.whatif.points import Point
from foretrace.whatif.sweep import Subject, Swept, Task


def predicted_in_processes(subject: Subject, todo: Sequence[Task], count: int) -> Iterator[list[Point]]:
    """The points of each task, as they become ready, by so many processes."""
    others = set(active_children())
    pool = ProcessPoolExecutor(count, get_context("spawn"), _start, (subject, os.getpid()))
    try:
        with _uninterrupted(), _without_script():
            tasks = [pool.submit(_work, task) for task in todo]
        for task in as_completed(tasks):
            yield task.result()
    except BrokenProcessPool:
        raise ForetraceError(
            "a process of the sweep was killed", "Memory may have run out: give fewer --workers."
        ) from None
    finally:
        # What is still to be done after an interrupt is not waited for. The pool is left to find its processes
        # ended: were its tasks cancelled as well, it would complain of them, or still be there when Python ends.
        for process in set(active_children()) - others:
            process.terminate()
        pool.shutdown()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started meanwhile never hear of Ctrl-C, which a terminal sends to all of them; this one does later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Processes started meanwhile do not run the script that asks for the sweep, which would ask for it again.

    Python runs it in each of them for what it may define; what they work with is Foretrace's own.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


_given: list[Subject] = []
"""What a process of a sweep works on."""


def _start(subject: Subject, parent: int) -> None:
    exit_with_parent(parent)  # its queue stays open in the other workers: it would wait for ever
    gc.disable()  # as the command line does: objects are made, and looking through them finds nothing
    _given.append(subject)


@cache
def _swept() -> Swept:
    """Read with the first task and not before: what is wrong with a file is then reported like any other error."""
    return Swept(_given[0])


def _work(task: Task) -> list[Point]:
    return _swept().points(*task)


def predicted_on_ray(
    address: str, subject: Subject, todo: Sequence[Task], workers: int | None
) -> Iterator[list[Point]]:
    """The points of each task, as they become ready, by so many workers, or one for each core of the cluster.

    The address is ``HOST:PORT``, ``auto`` for the cluster that this machine is part of, or ``local`` for one on this
    machine. A subject that is a path must be readable on every machine of the cluster.
    """
    ray = _connected(address)
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        worker = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Swept)
        crew = [worker.remote(subject) for _ in range(min(workers or cores, cores, len(todo)))]
        from ray.util import ActorPool

        yield from ActorPool(crew).map_unordered(lambda actor, task: actor.points.remote(*task), todo)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, ForetraceError) else error from None
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise ForetraceError("Ray is not installed", "pip install 'foretrace[ray]' brings it.") from None
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        text = str(error).strip().partition("\n")[0]
        raise ForetraceError(
            f"there is no Ray cluster at {address!r} ({text})", "Start one with `ray start --head`, or say local."
        ) from None
    return ray
