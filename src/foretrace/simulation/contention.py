"""Contention in compute/communication overlap: kernels and collectives that run at once slow each other down.

What overlaps follows from the times, and the times from what overlaps: the step is simulated again until they settle.

Kernel models know kernels alone, and fabrics transfers alone: what overlap adds comes on top. Measured kernels already
hold what it added in the measured run: for them only the difference in overlap counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foretrace.simulation.engine import simulate
from foretrace.simulation.merge import JobTasks, RankTasks
from foretrace.simulation.task_graph import KERNEL, Floats, Longs, TaskGraph, Timeline, merged

PASSES = 4
SETTLED_US = 1.0
"""A change of the last end below which another pass is not worth its time."""
NO_TASKS = np.zeros(0, np.int64)


class Slowdown(Protocol):
    """How much longer kernels and transfers take where they overlap."""

    @property
    def spins(self) -> bool:
        """Whether a collective that waits for its last rank slows kernels as well, as on GPUs."""

    def longer(self, us: Floats, share: Floats) -> Floats:
        """Microseconds that kernels take longer, with a collective during a share of their time."""

    def transfer_longer(self, us: Floats, share: Floats) -> Floats:
        """Microseconds that transfers take longer, with kernels during a share of their time."""


def overlap_share(start: Floats, end: Floats, other_start: Floats, other_end: Floats) -> Floats:
    """The share of each interval that lies inside any of some others.

    >>> overlap_share(np.array([0.0, 8.0]), np.array([4.0, 9.0]), np.array([3.0]), np.array([10.0])).tolist()
    [0.25, 1.0]
    """
    if not len(other_start):
        return np.zeros(len(start))
    begins, ends, _ = merged(other_start, other_end)
    covered = np.append(0.0, np.cumsum(ends - begins))

    def until(time: Floats) -> Floats:
        at = np.searchsorted(begins, time, "right") - 1
        inside = covered[at] + np.clip(time - begins[at], 0.0, (ends - begins)[at])
        return np.where(at >= 0, inside, 0.0)

    return np.asarray((until(end) - until(start)) / np.maximum(end - start, 1e-9))


def with_contention(
    job: JobTasks,
    measured_overlap: Sequence[Floats | None],
    slowdown: Slowdown,
    measured_transfers: NDArray[np.bool_] | None = None,
) -> tuple[JobTasks, Timeline]:
    """The task graph with kernels and transfers as slow as their overlap makes them, and when all of it runs.

    A transfer is as slow as on the rank where most overlaps with it: all wait for the slowest.

    For each rank ``measured_overlap`` has the share of each of its kernel tasks that overlapped with a collective when
    it was measured, or one number for all; None for a rank whose kernels stay as they are. ``measured_transfers`` tells
    the transfers that stay as they are, since they were measured with what overlapped with them.
    """
    alone = job.tasks.duration
    slowed_tasks = _compute_kernels if slowdown.spins else computing_tasks
    tasks = [slowed_tasks(rank) if known is not None else NO_TASKS for rank, known in zip(job.ranks, measured_overlap)]

    def slowed(timeline: Timeline) -> Floats:
        start, end = timeline.start, timeline.end
        duration, shares = alone.copy(), np.zeros(len(alone))
        for position, (rows, known) in enumerate(zip(tasks, measured_overlap)):
            moved = job.ranks[position].contending(job.transfer[position])
            if known is not None and len(rows) and len(moved):
                ours = job.first[position] + rows
                collectives = _collectives(job, position, timeline) if slowdown.spins else (start[moved], end[moved])
                more = overlap_share(start[ours], end[ours], *collectives) - known
                duration[ours] = np.maximum(alone[ours] + slowdown.longer(alone[ours], more), 0.0)
                share = overlap_share(start[moved], end[moved], start[ours], end[ours])
                shares[moved] = np.maximum(shares[moved], share)
        transfers = slice(job.first[-1], None)
        if measured_transfers is not None:
            shares[transfers] *= ~measured_transfers
        duration[transfers] = alone[transfers] + slowdown.transfer_longer(alone[transfers], shares[transfers])
        return duration

    slower, timeline = settle(job.tasks, slowed)
    return job._replace(tasks=slower), timeline


def settle(tasks: TaskGraph, slowed: Callable[[Timeline], Floats]) -> tuple[TaskGraph, Timeline]:
    """The task graph with durations that fit the times they lead to, and these times."""
    timeline = simulate(tasks)
    for _ in range(PASSES):
        tasks, before = replace(tasks, duration=slowed(timeline)), timeline
        timeline = simulate(tasks)
        if abs(timeline.end.max(initial=0.0) - before.end.max(initial=0.0)) < SETTLED_US:
            break
    return tasks, timeline


def measured_overlap(rank: RankTasks, timeline: Timeline) -> Floats:
    """The share of each of a rank's computing tasks that overlapped with one of its collectives."""
    rows = computing_tasks(rank)
    start, end = timeline.start, timeline.end
    collectives = rank.contending(rank.arrival)
    return overlap_share(start[rows], end[rows], start[collectives], end[collectives])


def computing_tasks(rank: RankTasks) -> Longs:
    """Kernel tasks, collectives apart; where there are none the host does the work, and its tasks are meant."""
    kernels = _compute_kernels(rank)
    return kernels if len(kernels) else np.flatnonzero(rank.tasks.on_host)


def _compute_kernels(rank: RankTasks) -> Longs:
    """Kernel tasks, collectives apart."""
    computes = rank.tasks.kind == KERNEL
    computes[rank.arrival[rank.arrival >= 0]] = False
    return np.flatnonzero(computes)


def _collectives(job: JobTasks, position: int, timeline: Timeline) -> tuple[Floats, Floats]:
    """When those of a rank begin and end, waiting included."""
    times, rank = job.rank_timeline(position, timeline), job.ranks[position]
    arrived = rank.contending(rank.arrival)
    return times.start[arrived], times.end[arrived]
