"""Changes that make a step fit on its device: the largest batch (``--set batch=max``), and the smallest other changes.

Every candidate is made, and goes through the simulated allocator; nothing is priced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from foretrace.errors import ForetraceError
from foretrace.graph import Job
from foretrace.platform.device import Device
from foretrace.prediction.memory import TOO_LARGE, MemoryNeed, rank_memory
from foretrace.whatif.changes import EditedJob
from foretrace.whatif.grammar import LARGEST, Change, read_changes

EXPANDABLE = "expandable_segments:True"
CANDIDATES = (["checkpoint=*"], ["autocast=bf16"], ["checkpoint=*", "autocast=bf16"])
"""Changes that take memory off a step and leave its batch, those with the smallest effect on its code first."""
SHARED_BY = (2, 4, 8, 16, 32, 64)
"""Ranks that are tried to share a step, in this order."""
MAX_BATCH = 1 << 24
"""A step in which no batch is too large does not grow with what was taken for its batch."""


def with_largest_batch(edited: EditedJob, changes: Sequence[Change], device: Device) -> list[Change]:
    """The changes with the largest batch that fits in the place of ``batch=max``."""

    def fits(batch: int) -> bool:
        need = fullest_need(edited.by(_with_batch(changes, batch)), device)
        if need is None:
            raise ForetraceError("the step says nothing about memory", "Record or sketch it: traces may not have it.")
        return need.verdict != TOO_LARGE

    whole = (edited.batch or 1) * edited.micro_batches
    each = edited.micro_batches if Change("batch", f"{LARGEST}/{whole}") in changes else 1
    return _with_batch(changes, each * largest_batch(lambda batch: fits(each * batch), edited.batch or 1))


def fullest_need(job: Job, device: Device) -> MemoryNeed | None:
    """What the fullest rank of a job needs."""
    needs = (rank_memory(graph, None, device) for graph in job.graphs)
    return max(filter(None, needs), key=lambda need: need.reserved or need.allocated, default=None)


def changes_that_fit(job: Job, device: Device) -> list[str]:
    """Changes that make a step of one rank fit, each alone and as small as it can be, as a user writes them."""
    found = []
    expandable = replace(device, alloc_conf=EXPANDABLE)
    if _fits(job, expandable):
        found.append(f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}")
    if job.world > 1 or len(job.graphs) > 1:
        return found
    edited = EditedJob(job)
    with suppress(ForetraceError):  # a step whose batch does not show
        (batch,) = with_largest_batch(edited, [Change("batch", LARGEST)], device)
        found.append(f"--set {batch} instead of {edited.batch:,}")
    for texts in CANDIDATES:
        with suppress(ForetraceError):  # a step that can't be changed so
            changes = read_changes(texts)
            if _fits(edited.by(changes), device):
                found.append(" ".join(f"--set {change}" for change in changes))
    for ranks in SHARED_BY:
        with suppress(ForetraceError):
            if _fits(edited.by(read_changes([f"data={ranks}", "sharded=on"])), device):
                found.append(f"weights, gradients and optimizer state in shards: --parallel data={ranks},sharded")
                break
    return found


def _fits(job: Job, device: Device) -> bool:
    need = fullest_need(job, device)
    return need is not None and need.verdict != TOO_LARGE


def _with_batch(changes: Sequence[Change], batch: int) -> list[Change]:
    return [
        Change("batch", change.value.replace(LARGEST, str(batch), 1)) if change.name == "batch" else change
        for change in changes
    ]


def largest_batch(fits: Callable[[int], bool], start: int) -> int:
    """The largest batch that fits, by bisection.

    >>> largest_batch(lambda batch: batch <= 77, start=16)
    77
    """
    low, high = 0, max(start, 1)
    while fits(high):
        low, high = high, 2 * high
        if high > MAX_BATCH:
            raise ForetraceError(f"a batch of {low:,} still fits", "The step's memory does not depend on its batch.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise ForetraceError("not even a batch of one fits", "Share the step between ranks, or take a larger device.")
    return low
