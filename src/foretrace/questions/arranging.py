"""Jobs with changes: the step of each rank, how ranks share it, how many they are, how they exchange gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from foretrace.errors import parse_size
from foretrace.graph import ForetraceError, Job
from foretrace.prediction.scaling import at_world_resharded
from foretrace.questions.changes import Change, Edited
from foretrace.questions.job_words import OF_JOBS, WAYS
from foretrace.transforms.fusion.ddp_buckets import buckets, data_parallel_group, overlap
from foretrace.transforms.parallel.parallelize import ParallelConfig, parallelize
from foretrace.transforms.resize.batch_sequence import batch_size


@dataclass(frozen=True)
class Arrangement:
    """Changes of a job, in the order in which they are made; those that contradict each other are refused.

    >>> Arrangement.of([Change("world", "8"), Change("tensor", "2")]).ways
    {'tensor': 2, 'data': 4}
    """

    steps: tuple[Change, ...]
    """Of the step that each rank does."""
    ways: dict[str, Any]
    """How ranks share the step of one."""
    world: int | None
    """Another number of ranks, of a job that has several."""
    buckets: float | None
    overlap: bool | None

    @classmethod
    def of(cls, changes: Iterable[Change]) -> Arrangement:
        """What some changes say; of two that set the same, the last one counts."""
        changes = list(changes)
        said: dict[str, Any] = {
            change.name: OF_JOBS[change.name](change.value) for change in changes if change.name in OF_JOBS
        }
        steps = tuple(change for change in changes if change.name not in OF_JOBS)
        ways = {name: value for name, value in said.items() if name in WAYS}
        size, world = said.get("buckets"), said.get("world")
        if not ways:
            return cls(steps, {}, world, size, said.get("overlap"))
        ways = _complete(ways, world)
        if said.get("overlap") and ways.get("tensor", 1) > 1:
            ways["overlap"] = True
        shared = ParallelConfig(**ways)
        if {"buckets", "overlap"} & said.keys() and shared.data > 1 and shared.sharded:
            raise ForetraceError("weights in shards are scattered, and not in buckets", "Leave out sharded, or these.")
        if size is not None and shared.data == 1:
            raise ForetraceError("one rank alone has nobody to share gradients with", "Leave out buckets.")
        if size is not None:
            ways["bucket_mb"] = size
        return cls(steps, ways, None, None, said.get("overlap") if shared.data > 1 else None)


def _complete(ways: dict[str, Any], world: int | None) -> dict[str, Any]:
    """With as many data parallel ranks as there is room for, where only the others are given."""
    if world is None:
        return ways
    others = {name: ways[name] for name in ("tensor", "pipeline") if name in ways}
    each = ways.get("tensor", 1) * ways.get("pipeline", 1)
    on_progress = " x ".join(f"{name}={value}" for name, value in others.items())
    if "data" not in ways:
        if world % each:
            raise ForetraceError(f"{on_progress} does not divide {world} ranks", "Choose numbers whose product does.")
        return {**ways, "data": world // each}
    if ways["data"] * each != world:
        on_progress = " x ".join([f"data={ways['data']}", *([on_progress] if on_progress else [])])
        fitting = f" or set data={world // each}" if world % each == 0 else ""
        raise ForetraceError(f"{on_progress} makes {ways['data'] * each} ranks, not {world}", f"Leave out world{fitting}.")
    return ways


class Arranging:
    """A job and what becomes of it; what was found once serves for every later change of the same kind.

    Parameters
    ----------
    job
        The job, cut to one step.
    longest
        The longest sequence that will be asked for.
    recorded
        Samples in its batch, where that is known.
    on_progress
        Called with which change is made.
    """

    def __init__(
        self,
        job: Job,
        longest: int = 0,
        recorded: int | None = None,
        on_progress: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self._job = job
        self._recorded = recorded
        self._edited = [Edited(graph, longest, on_progress) for graph in job.graphs]

    @cached_property
    def _batch(self) -> int | None:
        return self._recorded or batch_size(self._job.graphs[0])

    def by(self, changes: Sequence[Change]) -> Job:
        """The job after these changes: first of the step, then of how it is shared, then of what is exchanged."""
        asked = Arrangement.of(changes)
        job = replace(self._job, graphs=[edited.by(asked.steps) for edited in self._edited])
        if asked.ways:
            job = parallelize(job, **asked.ways)
        if asked.world is not None:
            job = at_world_resharded(job, asked.world)
        if asked.buckets is not None:
            job = replace(job, graphs=[buckets(graph, asked.buckets) for graph in job.graphs])
        if asked.overlap is not None:
            job = replace(job, graphs=[overlap(graph, asked.overlap) for graph in job.graphs])
        return job

    def samples(self, changes: Sequence[Change], job: Job) -> int | None:
        """In a step of all ranks of the job that these changes made; None where the step does not show its batch."""
        asked = Arrangement.of(changes)
        sizes = [parse_size("batch", change.value)[0] for change in asked.steps if change.name == "batch"]
        batch = sizes[-1] if sizes else self._batch
        if batch is None:
            return None
        return batch * (asked.ways.get("data", 1) if asked.ways else _replicas(job))


def _replicas(job: Job) -> int:
    """How many ranks have a batch of their own: those that sum their gradients, or all where nothing is exchanged."""
    first = job.graphs[0]
    if not first.collectives:
        return job.world
    return max(len(data_parallel_group(first)), 1)
