"""Sweeps on a Ray cluster, a worker for each of its cores; a lost one is started again, and repeats its part.

Ray is an extra: ``pip install 'foretrace[ray]'``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.questions.sweep_points import Point
from foretrace.questions.swept import Subject, Swept, Task


def predicted_on_ray(
    address: str, subject: Subject, todo: Sequence[Task], workers: int | None
) -> Iterator[list[Point]]:
    """The points of each task, as they become ready.

    Parameters
    ----------
    address
        Of the cluster: ``HOST:PORT``, ``auto`` for the one this machine is part of, ``local`` for one on this machine.
    subject
        What is swept: a path that every machine of the cluster can read, or the job that a script was sketched as.
    todo
        What is to be predicted.
    workers
        How many; one for each core of the cluster where it is left out.
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
