"""All ranks as one task graph."""

from dataclasses import replace

import numpy as np
import pytest

from foretrace.simulation.engine import DeadlockError, simulate
from foretrace.simulation.merge import JobTasks, RankTasks, merge_ranks
from foretrace.simulation.task_graph import KERNEL, T1, TRANSFER, TaskGraph, Timeline

HOST_TASK, COMPUTE, ARRIVAL, AFTER = range(4)


def rank(compute: float, waits: bool = True) -> RankTasks:
    """A launch, a kernel before a collective, the collective, and a kernel that waits for it or does not."""
    edges = [(HOST_TASK, COMPUTE), (COMPUTE, ARRIVAL), (ARRIVAL if waits else COMPUTE, AFTER)]
    kind = np.array([T1, KERNEL, KERNEL, KERNEL], np.int8)
    row = np.array([0, 0, 1, 2], np.int32)
    tasks = TaskGraph.of([1.0, compute, 99.0, 2.0], [0, 1, 2, 1], edges, kind=kind, row=row)
    return RankTasks(tasks, np.array([ARRIVAL]))


def simulated(*ranks: RankTasks, us: float = 5.0) -> tuple[JobTasks, Timeline]:
    job = merge_ranks(ranks, [[(n, 0) for n in range(len(ranks))]], np.array([us]))
    return job, simulate(job.tasks)


def test_a_collective_starts_when_its_last_rank_arrives_and_ends_for_all() -> None:
    job, timeline = simulated(rank(3.0), rank(10.0))
    early, late = job.rank_timeline(0, timeline), job.rank_timeline(1, timeline)
    assert (early.start[ARRIVAL], late.start[ARRIVAL]) == (4.0, 11.0)
    assert early.end[ARRIVAL] == late.end[ARRIVAL] == 16.0
    assert early.start[AFTER] == late.start[AFTER] == 16.0


def test_what_a_rank_measured_as_its_collective_is_not_part_of_the_simulation() -> None:
    _, timeline = simulated(rank(3.0), us=5.0)
    assert timeline.span == 1.0 + 3.0 + 5.0 + 2.0


def test_only_what_waits_for_a_collective_is_held_up() -> None:
    job, timeline = simulated(rank(3.0, waits=False), rank(10.0))
    assert job.rank_timeline(0, timeline).start[AFTER] == 4.0
    assert job.rank_timeline(1, timeline).start[AFTER] == 16.0


def test_a_rank_that_leaves_before_the_last_arrives_takes_its_own_time_for_it() -> None:
    root = replace(rank(3.0), leaves=np.array([True]))
    job, timeline = simulated(
        replace(root, tasks=replace(root.tasks, duration=np.array([1.0, 3.0, 1.5, 2.0]))), rank(10.0)
    )
    assert job.rank_timeline(0, timeline).start[AFTER] == 1.0 + 3.0 + 1.5
    assert job.rank_timeline(1, timeline).start[AFTER] == 16.0


def test_a_transfer_is_labelled_with_the_rank_that_came_last() -> None:
    job, timeline = simulated(rank(3.0), rank(10.0))
    tasks = job.labelled(timeline)
    assert (tasks.kind[-1], tasks.rank[-1], tasks.row[-1]) == (TRANSFER, 1, 1)


def test_a_rank_without_a_graph_of_its_own_holds_no_other_up() -> None:
    job = merge_ranks([rank(3.0)], [[(0, 0)]], np.array([5.0]))
    assert simulate(job.tasks).span == 11.0


def test_ranks_that_start_later_arrive_later() -> None:
    early, late = rank(3.0), rank(3.0)
    held = RankTasks(replace(late.tasks, release=np.array([50.0, 0.0, 0.0, 0.0])), late.arrival)
    job, timeline = simulated(early, held)
    assert job.rank_timeline(0, timeline).end[ARRIVAL] == 50.0 + 4.0 + 5.0


def test_groups_called_in_another_order_deadlock() -> None:
    tasks = TaskGraph.of([0.0, 0.0], [0, 0], [(0, 1)], kind=np.array([KERNEL, KERNEL], np.int8))
    one, other = RankTasks(tasks, np.array([0, 1])), RankTasks(tasks, np.array([1, 0]))
    with pytest.raises(DeadlockError):
        simulate(merge_ranks([one, other], [[(0, n), (1, n)] for n in range(2)], np.ones(2)).tasks)
