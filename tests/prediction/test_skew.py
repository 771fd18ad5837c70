"""Ranks that do the same and are never equally fast."""

import numpy as np
import pytest

from foretrace.analysis.collective_matching import CollectiveMatch, RankCall
from foretrace.graph import Graph, Job, Timings
from foretrace.platform.fabric import Curve, Fabric
from foretrace.prediction.cpu_ranks import arrival_skew, expected_last
from foretrace.prediction.predict import predict_on_own_machine
from foretrace.prediction.scaling import at_world
from foretrace.simulation.engine import simulate
from foretrace.simulation.merge import JobTasks, RankTasks, merge_ranks
from foretrace.simulation.task_graph import KERNEL, T1, TaskGraph
from tests.prediction.test_host_collectives import rank

WORLD, SPREAD = 8, 0.1
BEFORE, FIRST, BETWEEN, SECOND, BEHIND = range(5)


def job(waits: bool) -> tuple[JobTasks, list[CollectiveMatch]]:
    """Work of 100 us, a collective, work of 50 that waits for it or not, another one, and work that waits for both."""
    edges = [(BEFORE, FIRST), (BEFORE, BETWEEN), (BETWEEN, SECOND), (BETWEEN, BEHIND), (SECOND, BEHIND)]
    edges += [(FIRST, SECOND)]  # one goes out after the other
    edges += [(FIRST, BETWEEN)] if waits else []
    kind = np.array([T1, KERNEL, T1, KERNEL, T1], np.int8)
    tasks = TaskGraph.of([100.0, 0.0, 50.0, 0.0, 5.0], [0, 1, 0, 1, 0], edges, kind=kind)
    matches = [CollectiveMatch("all_reduce", 8, tuple(range(WORLD)), (RankCall(0, number),)) for number in (0, 1)]
    ranks = [RankTasks(tasks, np.array([FIRST, SECOND]))]
    return merge_ranks(ranks, [match.calls for match in matches], np.array([20.0, 20.0])), matches


@pytest.mark.parametrize("waits, second", [(True, 50.0), (False, 155.0)])
def test_the_last_of_many_is_behind_by_what_ranks_did_since_they_last_waited(waits: bool, second: float) -> None:
    tasks, matches = job(waits)
    late = arrival_skew(tasks, simulate(tasks.tasks), matches, [SPREAD])
    # Before the first one of a step lie the 5 us after the last one of the step before.
    assert late == pytest.approx(expected_last(WORLD) * SPREAD * np.array([105.0, second]))
    slower = simulate(tasks.delayed(late).tasks)
    assert slower.start[-2] == pytest.approx(100 + late[0])


def test_ranks_that_all_have_a_graph_are_as_late_as_they_are() -> None:
    tasks, matches = job(waits=True)
    alone = [CollectiveMatch(one.kind, one.nbytes, (0,), one.calls) for one in matches]
    assert not arrival_skew(tasks, simulate(tasks.tasks), alone, [SPREAD]).any()
    assert not arrival_skew(tasks, simulate(tasks.tasks), matches, [0.0]).any()


def recorded(number: int) -> Graph:
    graph = rank(number)
    graph.unprofiled = Timings(synced_ms=tuple(0.3 * (1 + 0.02 * turn) for turn in range(-5, 6)))
    return graph


def test_a_job_of_more_ranks_on_processors_waits_for_the_last_of_them() -> None:
    curves = tuple(Curve("all_reduce", ranks, 1, 100.0, 1e6, 1.0, ((64.0, 1.0),), 0.05) for ranks in (2, WORLD))
    small = Job([recorded(0), recorded(1)])
    forecast = predict_on_own_machine(at_world(small, WORLD), Fabric("gloo", curves, "made up"))
    (note,) = [note for note in forecast.notes if "are assumed to differ" in note]
    spread = 0.16 / 2.5631
    assert forecast.step_ms == pytest.approx((245 + expected_last(WORLD) * spread * 105) / 1e3, rel=0.02), note


def test_of_a_job_on_processors_the_exchange_is_no_work_of_a_device_and_a_late_rank_launches_nothing() -> None:
    late = recorded(1)
    late.ops.end[0] += 500.0
    late.ops.start[1:] += 500.0
    late.ops.end[1:] += 500.0
    curve = Curve("all_reduce", 2, 1, 100.0, 1e6, 1.0, ((64.0, 1.0),), 0.05)
    forecast = predict_on_own_machine(Job([recorded(0), late]), Fabric("gloo", (curve,), "made up"))
    assert {row.mostly for row in forecast.look_at} <= {"host", "exchange"}
    assert [row.why for row in forecast.stragglers] == ["slow host: its calls take longer"]
