"""Kernels that overlap with a collective."""

from dataclasses import replace

import numpy as np
import pytest

from foretrace.cost_models.collectives.contention import Contention
from foretrace.prediction.rank_models import NO_OVERLAP
from foretrace.simulation.contention import measured_overlap, overlap_share, with_contention
from foretrace.simulation.engine import simulate
from foretrace.simulation.merge import JobTasks, RankTasks, merge_ranks
from foretrace.simulation.task_graph import KERNEL, TaskGraph

FIRST, COLLECTIVE, OTHER = range(3)


HALF_AS_LONG_AGAIN = Contention(1.5, 2.0, "made up", 1.25, "made up")


def job(overlaps: bool, transfer: float = 100.0) -> JobTasks:
    """A kernel; then a collective, and a kernel of 20 us that overlaps with it or comes after it."""
    edges = [(FIRST, COLLECTIVE), (FIRST if overlaps else COLLECTIVE, OTHER)]
    tasks = TaskGraph.of([10.0, 0.0, 20.0], [0, 1, 0], edges, kind=np.full(3, KERNEL, np.int8))
    return merge_ranks([RankTasks(tasks, np.array([COLLECTIVE]))], [[(0, 0)]], np.array([transfer]))


def test_a_kernel_beside_a_collective_takes_longer() -> None:
    slower, timeline = with_contention(job(overlaps=True), [NO_OVERLAP], HALF_AS_LONG_AGAIN)
    assert slower.tasks.duration[OTHER] == pytest.approx(1.5 * 20 + 2)
    assert timeline.end[OTHER] == pytest.approx(10 + 32)


def test_a_collective_that_a_host_thread_runs_slows_no_kernel_and_is_slowed_by_none() -> None:
    rank = replace(job(overlaps=True).ranks[0], overlapping=np.array([True]))
    of_host = merge_ranks([rank], [[(0, 0)]], np.array([100.0]))
    slower, timeline = with_contention(of_host, [NO_OVERLAP], HALF_AS_LONG_AGAIN)
    assert slower.tasks.duration.tolist() == [10.0, 0.0, 20.0, 100.0]
    assert measured_overlap(rank, of_host.rank_timeline(0, timeline)).tolist() == [0.0, 0.0]


def test_a_collective_beside_kernels_takes_longer_for_as_long_as_they_run() -> None:
    slower, timeline = with_contention(job(overlaps=True), [NO_OVERLAP], HALF_AS_LONG_AGAIN)
    share = (timeline.end[OTHER] - 10) / (timeline.end[-1] - 10)
    assert slower.tasks.duration[-1] == pytest.approx(100 * (1 + share * 0.25), rel=0.01)


def test_a_collective_is_as_slow_as_at_the_rank_with_most_beside_it() -> None:
    busy, idle = (job(overlaps).ranks[0] for overlaps in (True, False))
    both = merge_ranks([busy, idle], [[(0, 0), (1, 0)]], np.array([20.0]))
    slower, _ = with_contention(both, [NO_OVERLAP, NO_OVERLAP], HALF_AS_LONG_AGAIN)
    assert slower.tasks.duration[-1] == pytest.approx(25.0), "the first rank computes during all of it"


def test_kernels_before_and_after_it_do_not() -> None:
    slower, timeline = with_contention(job(overlaps=False), [NO_OVERLAP], HALF_AS_LONG_AGAIN)
    assert slower.tasks.duration[:3].tolist() == [10.0, 0.0, 20.0]
    assert timeline.span == 130.0


def test_a_kernel_that_overlaps_in_part_takes_longer_in_part() -> None:
    slower, timeline = with_contention(job(overlaps=True, transfer=10.0), [NO_OVERLAP], HALF_AS_LONG_AGAIN)
    share = 10.0 / (timeline.end[OTHER] - timeline.start[OTHER])
    assert slower.tasks.duration[OTHER] == pytest.approx(20 + share * 12, rel=0.05)


def test_what_was_measured_beside_a_collective_is_not_slowed_again() -> None:
    overlapping = job(overlaps=True)
    timeline = simulate(overlapping.tasks)
    share = measured_overlap(overlapping.ranks[0], overlapping.rank_timeline(0, timeline))
    assert share.tolist() == [0.0, 1.0]
    slower, _ = with_contention(overlapping, [share], HALF_AS_LONG_AGAIN)
    assert slower.tasks.duration[OTHER] == 20.0


def test_a_transfer_that_was_measured_beside_kernels_is_not_slowed_again() -> None:
    slower, _ = with_contention(job(overlaps=True), [NO_OVERLAP], HALF_AS_LONG_AGAIN, np.ones(1, bool))
    assert slower.tasks.duration[-1] == 100.0


def test_kernels_that_shall_stay_as_they_are_do() -> None:
    slower, _ = with_contention(job(overlaps=True), [None], HALF_AS_LONG_AGAIN)
    assert slower.tasks.duration[OTHER] == 20.0 and slower.tasks.duration[-1] == 100.0


def test_shares_of_nothing_are_nothing() -> None:
    assert overlap_share(np.array([0.0]), np.array([1.0]), np.zeros(0), np.zeros(0)).tolist() == [0.0]
