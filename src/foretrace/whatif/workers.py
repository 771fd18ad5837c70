"""Sweeps and searches in several processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import Any

from foretrace.graph import ForetraceError, Job
from foretrace.processes import map_in_processes, worker_pool
from foretrace.whatif.plan_simulator import Simulate, Simulator
from foretrace.whatif.plans import Choice
from foretrace.whatif.points import Point
from foretrace.whatif.sweep import Subject, Swept, Task


def predicted_in_processes(subject: Subject, todo: Sequence[Task], count: int) -> Iterator[list[Point]]:
    """The points of each task, as they become ready, by so many processes."""
    try:
        yield from map_in_processes(_work, todo, count, _start, (subject,))
    except BrokenProcessPool:
        raise ForetraceError(
            "a process of the sweep was killed", "Memory may have run out: give fewer --workers."
        ) from None


_given: list[Subject] = []
"""What a process of a sweep works on."""


def _start(subject: Subject) -> None:
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
    with ray_cluster(address, workers) as (ray, count):
        from ray.util import ActorPool

        worker = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Swept)
        crew = [worker.remote(subject) for _ in range(min(count, len(todo)))]
        try:
            yield from ActorPool(crew).map_unordered(lambda actor, task: actor.points.remote(*task), todo)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise cause if isinstance(cause, ForetraceError) else error from None


Given = tuple[Job, str, str | None, int | None]
"""What a `Simulator` is made of."""
_simulators: list[Simulator] = []


@contextmanager
def simulated_in_processes(given: Given, count: int) -> Iterator[Simulate]:
    """Plans of a job, simulated by so many processes."""
    with worker_pool(count, _start_simulator, given) as submit:

        def simulate(plans: Sequence[Choice], whole: bool) -> list[Point]:
            try:
                return [task.result() for task in submit(_simulate, [(plan, whole) for plan in plans])]
            except BrokenProcessPool:
                raise ForetraceError(
                    "a process that simulates plans was killed", "Memory may have run out: give fewer --workers."
                ) from None

        yield simulate


def _start_simulator(*given: Any) -> None:
    gc.disable()
    _simulators.append(Simulator(*given))


def _simulate(task: tuple[Choice, bool]) -> Point:
    (point,) = _simulators[0].points([task[0]], task[1])
    return point


@contextmanager
def simulated_on_ray(address: str, given: Given, workers: int | None) -> Iterator[tuple[Simulate, int]]:
    """Plans of a job, simulated by a Ray cluster; and how many at once."""
    with ray_cluster(address, workers) as (ray, count):
        worker, shared = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Simulator), ray.put(given[0])
        crew = [worker.remote(shared, *given[1:]) for _ in range(count)]

        def simulate(plans: Sequence[Choice], whole: bool) -> list[Point]:
            asked = [crew[n % count].points.remote([plan], whole) for n, plan in enumerate(plans)]
            return [point for points in ray.get(asked) for point in points]

        yield simulate, count


@contextmanager
def ray_cluster(address: str, workers: int | None) -> Iterator[tuple[Any, int]]:
    """The module ray, connected to a cluster, and how many workers there may be: one for each core by default."""
    ray = connect_ray(address)
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        yield ray, min(workers or cores, cores)
    finally:
        ray.shutdown()


def connect_ray(address: str) -> Any:
    """The module ray, connected to a cluster: ``HOST:PORT``, ``auto`` or ``local``."""
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
