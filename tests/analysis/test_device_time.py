"""Active, idle, ahead and hidden."""

import pytest

from foretrace.analysis.collectives import collective_times
from foretrace.analysis.device_time import active_and_idle, communication, queue_depth
from foretrace.analysis.report import QueueDepth
from tests.analysis.builders import all_reduce, job, launch, rank


def test_kernels_that_run_at_once_are_active_once() -> None:
    graph = rank(launch(0, 1, (10, 30)), launch(1, 2, (20, 50), stream=9), launch(3, 4, (70, 80)))
    assert active_and_idle(graph) == (50.0, 20.0)


def test_a_rank_without_a_device_is_neither_active_nor_idle() -> None:
    assert active_and_idle(rank()) == (0.0, 0.0)
    assert queue_depth(rank()) == QueueDepth(0.0, 0)


def test_the_queue_holds_what_is_launched_and_not_done() -> None:
    graph = rank(*(launch(t, t + 1, (10 + 10 * t, 20 + 10 * t)) for t in range(4)))
    depth = queue_depth(graph)
    assert depth.max == 4
    assert depth.mean == pytest.approx(((20 - 1) + (30 - 2) + (40 - 3) + (50 - 4)) / (50 - 1))


def test_communication_behind_compute_is_hidden_and_the_rest_exposed() -> None:
    graph = rank(all_reduce(0, 1, (10, 50)), launch(2, 3, (0, 30)))
    found = communication(graph, 0, collective_times([graph])[0])
    assert (found.communication_ms, found.hidden_ms, found.exposed_ms) == pytest.approx((0.04, 0.02, 0.02))


def test_of_the_exposed_what_waits_for_others_is_told_apart() -> None:
    early, late = rank(all_reduce(0, 1, (10, 50)), launch(2, 3, (0, 15))), rank(all_reduce(0, 1, (40, 50)))
    met, _ = collective_times(job(early, late).graphs)
    assert communication(early, 0, met).exposed_wait_ms == pytest.approx(0.025)
    assert communication(late, 1, met).exposed_wait_ms == 0.0
