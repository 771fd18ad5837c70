"""Plans simulated on a platform: steps of many blocks or microbatches with few, twice, and extrapolated.

Time and memory grow by the same amount with each block, and time with each microbatch once the pipeline is full.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.transforms.blocks import repeated_blocks
from foretrace.whatif.changes import EditedJob
from foretrace.whatif.plans import MIN_BLOCKS, Choice, as_changes, settings
from foretrace.whatif.points import Point
from foretrace.whatif.sweep import Subject, Swept

BLOCKS_A_STAGE = (2, 4)
"""Of each stage, where a step of many is simulated with few."""
SHARDED_BLOCKS = (3, 6)
"""The same where weights are in shards: before the third block, fewer gathered ones are held than later."""
MAX_GARBAGE = 200_000
"""Objects since the last collection from which on another is worth its time: a pipeline leaves a million behind."""

ROUNDS = (1, 2)
"""Microbatches for each stage, where a step of many is simulated with few; of those that need more to be full: one more
each."""
MAX_CALLS = 40_000
"""Calls of all stages and microbatches that a plan is simulated with in whole: each takes some 5 kB while it lasts."""
EXTRAPOLATED = "extrapolated from fewer blocks or microbatches"
"""The note of a point that is."""

Simulate = Callable[[Sequence[Choice], bool], Sequence[Point]]
"""Points of some plans, in their order; extrapolated from fewer blocks, or in whole."""


class Simulator:
    """Plans of a job, simulated on a platform, in whole or extrapolated from fewer blocks."""

    def __init__(self, job: Job, on: str, fabric: str | None = None, gpus_per_node: int | None = None) -> None:
        self._on, self._fabric, self._per_node = on, fabric, gpus_per_node
        self._jobs = {0: job}
        """The job with fewer blocks, by their number; as it is, with 0."""
        self._swept: dict[int, Swept] = {}
        self._blocks = len(repeated_blocks(job.graphs[0].ops)) if job.world == 1 else 0
        self._calls = len(job.graphs[0].ops)

    def whole(self, changes: Choice, blocks: int = 0) -> Point:
        """A plan, simulated with all blocks, or with fewer; of many microbatches, with few."""
        found = rounds(changes)
        if found is None:
            return self._simulated(changes, blocks)
        few, more = (self._simulated(with_microbatches(changes, count), blocks) for count in found)
        if few.next_ms is None or more.next_ms is None:
            return replace(few if few.next_ms is None else more, changes=list(changes))
        count = int(settings(changes)["microbatches"])
        made = _extrapolated(few, more, (count - found[0]) / (found[1] - found[0]))
        samples = few.samples and few.samples // found[0] * count
        if settings(changes).get("schedule") != "gpipe":  # no more are in flight once it is full
            made = replace(made, memory_bytes=more.memory_bytes, reserved_bytes=more.reserved_bytes)
        return replace(made, changes=list(changes), samples=samples, fits=more.fits)

    def smaller(self, changes: Choice) -> tuple[Job, Choice]:
        """The job and the changes that stand for a plan: with fewer blocks and microbatches where it has too many."""
        blocks, count = self.depths(changes) if self.is_too_large(changes) else None, rounds(changes)
        return self._with_blocks(blocks[1] if blocks else 0), with_microbatches(changes, count[1]) if count else changes

    def _with_blocks(self, blocks: int) -> Job:
        if blocks not in self._jobs:
            # Of the one with the fewest blocks that has enough: the fewer there are to remove, the faster.
            base = self._jobs[min((n for n in self._jobs if n > blocks), default=0)]
            self._jobs[blocks] = EditedJob(base).by(as_changes([f"depth={blocks}"]))
        return self._jobs[blocks]

    def _simulated(self, changes: Choice, blocks: int) -> Point:
        if blocks not in self._swept:
            share = blocks / self._blocks if blocks else 1.0
            subject = Subject(self._with_blocks(blocks), (self._on,), self._fabric, self._per_node, share=share)
            self._swept[blocks] = Swept(subject)
        (point,) = self._swept[blocks].points(as_changes(changes), [self._on])
        if gc.get_count()[0] > MAX_GARBAGE:  # the command line has switched collection off
            gc.collect()
        return point

    def is_too_large(self, changes: Choice) -> bool:
        """Whether a plan has too many calls to be simulated in whole."""
        microbatches = (rounds(changes) or (1, int(settings(changes).get("microbatches", 1))))[1]
        return self._calls * microbatches > MAX_CALLS

    def depths(self, changes: Choice) -> tuple[int, int] | None:
        """The numbers of blocks that a plan is extrapolated from; None where it is simulated as it is."""
        given, stages = settings(changes), _groups(changes)
        alone = SHARDED_BLOCKS if given.get("sharded") == "on" else BLOCKS_A_STAGE
        few, more = (max(each * stages, 2) for each in (alone if stages == 1 else (1, 2)))
        # Of checkpointed shares, each stage has whole ones.
        each = stages * int(given.get("checkpoint", "").partition("/")[2] or 1)
        few, more = (-(-blocks // each) * each for blocks in (few, more))
        more = max(more, 2 * few)
        # Both together take less time than the whole, or each takes less memory where that is short.
        worth = few + more < self._blocks * 0.75 or (more < self._blocks and self.is_too_large(changes))
        return (few, more) if self._blocks >= MIN_BLOCKS and worth else None

    def extrapolated(self, changes: Choice) -> Point:
        """A plan by its forecasts with few blocks."""
        found = self.depths(changes)
        if found is None:
            return self.whole(changes)
        try:
            more, few = (self.whole(changes, blocks) for blocks in reversed(found))
        except ForetraceError:  # its blocks can't be removed
            self._blocks = 0
            return self.whole(changes)
        if few.error or more.error or few.next_ms is None or more.next_ms is None:
            return self.whole(changes)
        stages = _groups(changes)
        blocks = -(-self._blocks // stages) * stages  # the fullest stage is the slowest
        made = _extrapolated(few, more, (blocks - found[0]) / (found[1] - found[0]))
        return replace(made, changes=list(changes), notes=[*more.notes, EXTRAPOLATED])

    def points(self, plans: Sequence[Choice], whole: bool) -> list[Point]:
        """The points of some plans; those that are too large are extrapolated in any case."""
        return [
            self.whole(plan) if whole and not self.is_too_large(plan) else self.extrapolated(plan) for plan in plans
        ]


def _groups(changes: Choice) -> int:
    """Groups that the blocks are divided into: stages, and chunks of each."""
    given = settings(changes)
    return int(given.get("pipeline", 1)) * int(given.get("chunks", 1))


def rounds(changes: Choice) -> tuple[int, int] | None:
    """The numbers of microbatches that a plan is extrapolated from; None where it has so few itself.

    >>> rounds(("batch=64", "pipeline=4", "microbatches=64")), rounds(("batch=64", "microbatches=64"))
    ((4, 8), (2, 3))
    >>> rounds(("batch=8", "pipeline=4", "microbatches=8"))
    """
    given = settings(changes)
    stages, count = int(given.get("pipeline", 1)), int(given.get("microbatches", 1))
    if "batch" not in given:
        return None
    if stages == 1:
        few, more = 2, 3  # the first one makes gradients, others add to them
    else:
        few, more = (stages * (each + (given.get("schedule") in ("zbv", "zb-h1"))) for each in ROUNDS)
    return (few, more) if count > few + more else None


def with_microbatches(changes: Choice, count: int) -> Choice:
    """A plan with fewer microbatches of as many samples each.

    >>> with_microbatches(("batch=64", "data=2", "pipeline=4", "microbatches=32"), 8)
    ('batch=16', 'data=2', 'pipeline=4', 'microbatches=8')
    """
    given = settings(changes)
    size = int(given["batch"]) // int(given["microbatches"])
    fewer = {**given, "batch": str(size * count), "microbatches": str(count)}
    return tuple(f"{name}={value}" for name, value in fewer.items())


def _extrapolated(few: Point, more: Point, ahead: float) -> Point:
    """The point on the line through two, so many times as far from the first as the second one is.

    What the allocator reserves beyond what is allocated jumps with the order of calls: the sum is taken to grow by no
    larger share than what is allocated, and never to shrink.
    """

    def line(name: str) -> float:
        first, second = (getattr(point, name) or 0 for point in (few, more))
        return float(max(first + (second - first) * ahead, second))  # more never take less

    known = (
        "step_ms",
        "next_ms",
        "device_active_ms",
        *(["sustained_ms"] if few.sustained_ms and more.sustained_ms else []),
    )
    times: dict[str, Any] = {"sustained_ms": None, **{name: line(name) for name in known}}
    sizes: dict[str, Any] = {"memory_bytes": round(line("memory_bytes"))} if few.memory_bytes else {}
    if few.memory_bytes and few.reserved_bytes and more.memory_bytes and more.reserved_bytes:
        most = (more.memory_bytes - few.memory_bytes) * more.reserved_bytes / more.memory_bytes
        grown = max(min(more.reserved_bytes - few.reserved_bytes, most), 0)
        sizes["reserved_bytes"] = max(round(more.reserved_bytes + grown * (ahead - 1)), sizes["memory_bytes"])
    return replace(more, fits=None, **times, **sizes)


def fewest_blocks(job: Job) -> Job:
    """The job with as few blocks as there can be: what does not depend on their number is found faster."""
    with suppress(ForetraceError):
        if job.world == 1 and len(repeated_blocks(job.graphs[0].ops)) >= MIN_BLOCKS:
            return EditedJob(job).by(as_changes([f"depth={BLOCKS_A_STAGE[0]}"]))
    return job
