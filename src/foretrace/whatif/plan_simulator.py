"""Plans simulated on a platform: steps of many blocks with few, twice, and extrapolated.

Time and memory grow by the same amount with each block.
"""

from __future__ import annotations

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

    def whole(self, changes: Choice, blocks: int = 0) -> Point:
        """A plan, simulated as it is, or with fewer blocks."""
        if blocks not in self._swept:
            if blocks not in self._jobs:
                # Of the one with the fewest blocks that has enough: the fewer there are to remove, the faster.
                base = self._jobs[min((n for n in self._jobs if n > blocks), default=0)]
                self._jobs[blocks] = EditedJob(base).by(as_changes([f"depth={blocks}"]))
            share = blocks / self._blocks if blocks else 1.0
            subject = Subject(self._jobs[blocks], (self._on,), self._fabric, self._per_node, share=share)
            self._swept[blocks] = Swept(subject)
        (point,) = self._swept[blocks].points(as_changes(changes), [self._on])
        return point

    def depths(self, changes: Choice) -> tuple[int, int] | None:
        """The numbers of blocks that a plan is extrapolated from; None where it is simulated as it is."""
        given = settings(changes)
        stages = int(given.get("pipeline", 1)) * int(given.get("chunks", 1))
        few, more = (max(each * stages, 2) for each in (BLOCKS_A_STAGE if stages == 1 else (1, 2)))
        # Of checkpointed shares, each stage has whole ones.
        each = stages * int(given.get("checkpoint", "").partition("/")[2] or 1)
        few, more = (-(-blocks // each) * each for blocks in (few, more))
        more = max(more, 2 * few)
        return (few, more) if self._blocks >= MIN_BLOCKS and few + more < self._blocks * 0.75 else None

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
        given = settings(changes)
        stages = int(given.get("pipeline", 1)) * int(given.get("chunks", 1))
        blocks = -(-self._blocks // stages) * stages  # the fullest stage is the slowest
        ahead = (blocks - found[0]) / (found[1] - found[0])

        def line(name: str) -> float:
            first, second = (getattr(point, name) or 0 for point in (few, more))
            return float(first + (second - first) * ahead)

        sizes: dict[str, Any] = {
            name: round(line(name)) for name in ("memory_bytes", "reserved_bytes") if getattr(few, name)
        }
        times: dict[str, Any] = {name: line(name) for name in ("step_ms", "next_ms", "device_ms")}
        return replace(more, changes=list(changes), fits=None, **times, **sizes)

    def points(self, plans: Sequence[Choice], whole: bool) -> list[Point]:
        """The points of some plans."""
        return [self.whole(plan) if whole else self.extrapolated(plan) for plan in plans]


def fewest_blocks(job: Job) -> Job:
    """The job with as few blocks as there can be: what does not depend on their number is found faster."""
    with suppress(ForetraceError):
        if job.world == 1 and len(repeated_blocks(job.graphs[0].ops)) >= MIN_BLOCKS:
            return EditedJob(job).by(as_changes([f"depth={BLOCKS_A_STAGE[0]}"]))
    return job
