"""Changes made: the step of each rank, how ranks share it, how many they are, how they reduce gradients.

What was found once in a step, such as where its batch is, serves for every later change of the same kind: sweeps ask
for hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from foretrace.errors import ForetraceError, parse_size
from foretrace.graph import Graph, Job
from foretrace.graph.op import COMPILED_REGION
from foretrace.prediction.scaling import at_world_resharded
from foretrace.transforms.fusion.ddp_buckets import buckets, data_parallel_group, overlap
from foretrace.transforms.fusion.elementwise import fuse_elementwise
from foretrace.transforms.parallel.parallelize import ParallelConfig, parallelize
from foretrace.transforms.resize.batch_sequence import batch_size, micro_batches, resizable_batch, resizable_sequence
from foretrace.transforms.resize.resizable import Resizable
from foretrace.transforms.resize.width import ResizableHidden
from foretrace.transforms.step import compiled_refusal
from foretrace.whatif.compiled_steps import fuse_programs, open_programs
from foretrace.whatif.grammar import JOB_CHANGES, PARALLELISM, RESIZABLE, STEP_CHANGES, Change, read_changes

FUSED_BETWEEN_COLLECTIVES = Change("fuse", "elementwise")


MAX_OPS_HELD = 20_000
"""Of all versions of a step that are held for later changes, together: some 100 MB."""
FUSED_ANEW = ("batch", "seq", "dtype")
"""Changes that a compiled step takes: its programs are opened for them, and fused anew."""


CASTS_STAY = "casts inside of compiled programs stay where they were: another type would need a few more, or fewer"


def _silent(stage: str) -> None:
    pass


class EditedStep:
    """A step and what becomes of it; ``longest`` is the longest sequence that will be asked for."""

    def __init__(self, graph: Graph, longest: int = 0, on_stage: Callable[[str], None] = _silent) -> None:
        self._on_stage = on_stage
        self._graphs: dict[tuple[Change, ...], Graph] = {(): graph}
        self._sizes: dict[tuple[tuple[Change, ...], str, int | None], Resizable | ResizableHidden] = {}
        self._longest = longest
        self._is_compiled = COMPILED_REGION in graph.ops.names.items

    def by(self, changes: Sequence[Change]) -> Graph:
        """The step after these changes, in their order."""
        done = tuple(changes)
        if done in self._graphs:
            return self._graphs[done]
        if self._is_compiled:
            if done[-1].name not in FUSED_ANEW:
                raise compiled_refusal(self._graphs[()])
            if self._graphs[()].programs:
                self._graphs = {(): open_programs(self._graphs[()])}
        self.by(done[:-1])
        self._on_stage(f"setting {done[-1]}")
        changed = self._changed(done[:-1], done[-1])
        self._graphs[done] = changed
        others = [key for key in self._graphs if key != done[: len(key)]]  # the oldest first
        held = sum(len(graph.ops) for graph in self._graphs.values())
        while others and held > MAX_OPS_HELD:
            held -= len(self._graphs.pop(others.pop(0)).ops)
        return changed

    def _changed(self, before: tuple[Change, ...], change: Change) -> Graph:
        if change.name in RESIZABLE:
            return self._resized(before, change)
        graph, where = self.by(before), [change.where] if change.where else []
        kind = STEP_CHANGES[change.name]
        value = parse_size(change.name, change.value)[0] if kind.sized else change.value
        return kind.transform(graph, value, *where)

    def _resized(self, before: tuple[Change, ...], change: Change) -> Graph:
        new, old = parse_size(change.name, change.value)
        key = (before, change.name, old)
        if key not in self._sizes:
            graph = self.by(before)
            if change.name == "seq":
                self._sizes[key] = resizable_sequence(graph, max(new, self._longest), old)
            elif change.name == "batch":
                self._sizes[key] = resizable_batch(graph, old)
            else:
                self._sizes[key] = ResizableHidden(graph, old)
        return self._sizes[key].to(new)


def edit_step(graph: Graph, changes: Iterable[Change | str]) -> Graph:
    """A step after some changes, in their order; texts as in ``batch=64``."""
    return EditedStep(graph).by(read_changes(changes))


@dataclass(frozen=True)
class JobChanges:
    """Changes of a job, in the order in which they are made; those that contradict each other are refused.

    >>> JobChanges.of([Change("world", "8"), Change("tensor", "2")]).parallelism
    {'tensor': 2, 'data': 4}
    """

    steps: tuple[Change, ...]
    """Of the step that each rank does."""
    parallelism: dict[str, Any]
    """How ranks share the step of one: options of `parallelize`."""
    world: int | None
    """Another number of ranks, of a job that has several."""
    buckets: float | None
    overlap: bool | None

    @classmethod
    def of(cls, changes: Iterable[Change]) -> JobChanges:
        """What some changes say; of two that set the same, the last one counts."""
        changes = list(changes)
        values: dict[str, Any] = {
            change.name: JOB_CHANGES[change.name](change.value) for change in changes if change.name in JOB_CHANGES
        }
        steps = tuple(change for change in changes if change.name not in JOB_CHANGES)
        parallelism = {name: value for name, value in values.items() if name in PARALLELISM}
        size, world = values.get("buckets"), values.get("world")
        if not parallelism:
            return cls(steps, {}, world, size, values.get("overlap"))
        parallelism = _complete(parallelism, world)
        if values.get("overlap") and parallelism.get("tensor", 1) > 1:
            parallelism["overlap"] = True
        config = ParallelConfig(**parallelism)
        grouped = "buckets" in values or ("overlap" in values and not config.overlap)
        if grouped and config.data > 1 and config.shards:
            raise ForetraceError("weights in shards are scattered, and not in buckets", "Leave out sharded, or these.")
        if size is not None and config.data == 1:
            raise ForetraceError("one rank alone shares no gradients", "Leave out buckets.")
        if size is not None:
            parallelism["bucket_mb"] = size
        reduced = config.data > 1 and not config.shards
        return cls(steps, parallelism, None, None, values.get("overlap") if reduced else None)


def _complete(parallelism: dict[str, Any], world: int | None) -> dict[str, Any]:
    """With as many data parallel ranks as the world leaves, where only the others are given."""
    if world is None:
        return parallelism
    others = {name: parallelism[name] for name in ("tensor", "pipeline", "context") if name in parallelism}
    each = prod(others.values())
    named = " x ".join(f"{name}={value}" for name, value in others.items())
    if "data" not in parallelism:
        if world % each:
            raise ForetraceError(
                f"{named} does not divide {world} ranks", "Choose numbers of parts whose product divides the ranks."
            )
        return {**parallelism, "data": world // each}
    if parallelism["data"] * each != world:
        named = " x ".join([f"data={parallelism['data']}", *([named] if named else [])])
        fitting = f" or set data={world // each}" if world % each == 0 else ""
        raise ForetraceError(
            f"{named} makes {parallelism['data'] * each} ranks, not {world}", f"Leave out world{fitting}."
        )
    return parallelism


def parallel_options(changes: Iterable[Change]) -> dict[str, Any]:
    """Options of `parallelize` that changes of ``--parallel`` say; refuses those that contradict each other."""
    options = {
        "bucket_mb" if change.name == "buckets" else change.name: JOB_CHANGES[change.name](change.value)
        for change in changes
    }
    ParallelConfig(**options)
    return options


def check_worlds(config: ParallelConfig, worlds: Iterable[int]) -> None:
    """Raise for a number of ranks that is no multiple of those of a job, nor a part of them.

    >>> check_worlds(ParallelConfig(data=2, tensor=2), [2, 4, 64])
    """
    each = config.world // config.data
    for world in worlds:
        if world % each or (world % config.world and config.world % world):
            few = ", ".join(str(config.world * times) for times in (1, 2, 4))
            fitting = f"Set data={world // each}, or give" if world % each == 0 else "Give"
            raise ForetraceError(
                f"--world {world} is no multiple of the {config.world} ranks that --parallel makes",
                f"{fitting} --world {few}, …, which adds data parallel ranks.",
            )


class EditedJob:
    """A job, cut to one step, and what becomes of it.

    ``longest`` is the longest sequence that will be asked for; ``recorded`` are the samples in its batch, where known.
    """

    def __init__(
        self, job: Job, longest: int = 0, recorded: int | None = None, on_stage: Callable[[str], None] = _silent
    ) -> None:
        self._job = job
        self._recorded = recorded
        self._steps = [EditedStep(graph, longest, on_stage) for graph in job.graphs]

    @property
    def batch(self) -> int | None:
        """Samples that a rank goes forward and backward with at once, as recorded; None where that does not show."""
        return self._batches[0]

    @property
    def micro_batches(self) -> int:
        """Over how many such batches a rank adds up gradients before it updates weights."""
        return self._batches[1]

    @cached_property
    def _batches(self) -> tuple[int | None, int]:
        graph, stated = self._job.graphs[0], self._recorded
        seen = batch_size(graph)
        count = micro_batches(graph, seen) if seen else 1
        if stated is None or (seen and stated in (seen, seen * count)):
            return seen, count
        return stated, micro_batches(graph, stated)

    def by(self, changes: Sequence[Change]) -> Job:
        """The job after these changes: first of the step, then of how it is shared, then of its communication.

        Element-wise calls of a shared step are fused after that, between its collectives.
        """
        asked = JobChanges.of(changes)
        late = [change for change in asked.steps if asked.parallelism and change == FUSED_BETWEEN_COLLECTIVES]
        steps = tuple(change for change in asked.steps if change not in late)
        job = replace(self._job, graphs=[step.by(steps) for step in self._steps])
        if any(graph.programs for graph in self._job.graphs):
            job = replace(job, graphs=[fuse_programs(graph) for graph in job.graphs])
            if any(change.name == "dtype" for change in steps):
                job.graphs[0].notes.append(CASTS_STAY)
        if asked.parallelism:
            job = parallelize(job, **asked.parallelism)
        if late:
            job = replace(job, graphs=[fuse_elementwise(graph) for graph in job.graphs])
        if asked.world is not None:
            job = at_world_resharded(job, asked.world)
        if asked.buckets is not None:
            job = replace(job, graphs=[buckets(graph, asked.buckets) for graph in job.graphs])
        if asked.overlap is not None:
            job = replace(job, graphs=[overlap(graph, asked.overlap) for graph in job.graphs])
        return job

    def samples(self, changes: Sequence[Change], job: Job) -> int | None:
        """Samples in a step of all ranks of the changed job; None where the step does not show its batch."""
        asked = JobChanges.of(changes)
        sizes = [parse_size("batch", change.value) for change in asked.steps if change.name == "batch"]
        new, stated = sizes[-1] if sizes else (self.batch, None)
        if new is None:
            return None
        of_step = self.batch and stated == self.batch * self.micro_batches
        ranks = asked.parallelism.get("data", 1) if asked.parallelism else _replicas(job)
        return new * ranks * (1 if of_step else self.micro_batches)

    def batch_notes(self, changes: Sequence[Change]) -> list[str]:
        """What the batch of a step that adds up gradients is, where it is changed."""
        if self.batch is None or self.micro_batches == 1 or all(change.name != "batch" for change in changes):
            return []
        whole = self.batch * self.micro_batches
        return [
            f"a step adds up the gradients of {self.micro_batches} micro-batches of {self.batch:,}: batch=NEW is the "
            f"size of each, batch=NEW/{whole} that of all together"
        ]


def _replicas(job: Job) -> int:
    """How many ranks have a batch of their own: those that sum their gradients, or all where nothing is exchanged."""
    first = job.graphs[0]
    if not first.collectives:
        return job.world
    return max(len(data_parallel_group(first)), 1)
