"""One pass over the tasks, and many with drawn durations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.simulation.critical_path import critical_path
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import TaskGraph
from foretrace.simulation.uncertainty import Uncertainty, sample_ends


def chain(count: int, duration: float = 1.0) -> TaskGraph:
    return TaskGraph.of([duration] * count, [0] * count, [(i, i + 1) for i in range(count - 1)])


def doubt(count: int, own: float = 0.0, common: float = 0.0) -> Uncertainty:
    """Every task has a number of its own, and all share one."""
    sigma = np.full(count, np.hypot(own, common))
    weight = np.full(count, common**2 / max(own**2 + common**2, 1e-12))
    return Uncertainty(np.arange(count, dtype=np.int32), sigma, sigma, np.zeros(count, np.int32), weight)


def test_a_task_starts_when_the_last_of_those_it_waits_for_has_ended() -> None:
    program = TaskGraph.of([2.0, 5.0, 1.0], [0, 1, 0], [(0, 2), (1, 2)])
    timeline = simulate(program)
    assert timeline.start.tolist() == [0.0, 0.0, 5.0]
    assert timeline.end.tolist() == [2.0, 5.0, 6.0]


def test_a_lag_is_waited_for_after_the_end() -> None:
    program = TaskGraph.of([2.0, 1.0], [0, 1], [(0, 1)], lag=3.0)
    assert simulate(program).start.tolist() == [0.0, 5.0]


def test_the_lag_decides_which_of_two_predecessors_binds() -> None:
    program = TaskGraph.of([2.0, 3.0, 1.0], [0, 1, 2], [(0, 2), (1, 2)], lag=np.array([5.0, 0.0]))
    assert critical_path(program, simulate(program)).task.tolist() == [0, 2]


def test_other_durations_than_the_programs_own_can_be_given() -> None:
    assert simulate(chain(3), np.array([1.0, 2.0, 3.0])).span == 6.0


def test_a_program_without_tasks_takes_no_time() -> None:
    assert simulate(TaskGraph.of([], [], [])).span == 0.0


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_task_that_takes_no_sensible_time_is_named(bad: float) -> None:
    with pytest.raises(ValueError, match="task 1 takes"):
        simulate(chain(3), np.array([1.0, bad, 1.0]))


def test_the_number_of_durations_must_be_that_of_the_tasks() -> None:
    with pytest.raises(ValueError, match="2 durations for 3 tasks"):
        simulate(chain(3), np.ones(2))


def test_an_edge_backwards_is_named_before_the_compiled_loop_sees_it() -> None:
    good = chain(3)
    bad = TaskGraph(good.duration, good.lane, good.first, good.before[::-1].copy(), good.lag)
    with pytest.raises(ValueError, match="task 1 waits for task 1"):
        simulate(bad)


@pytest.mark.parametrize("edge", [(0, 3), (-1, 1), (7, 1)])
def test_an_edge_to_a_task_that_is_not_there_is_named(edge: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"task {edge[1]} waits for task {edge[0]}, and there are 3 tasks"):
        TaskGraph.of([1.0] * 3, [0] * 3, [edge])


@given(st.lists(st.integers(0, 20), min_size=1, max_size=25), st.data())
def test_no_task_starts_too_early_and_none_later_than_it_must(durations: list[int], data: st.DataObject) -> None:
    pairs = [(a, b) for b in range(len(durations)) for a in range(b)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    program = TaskGraph.of([float(d) for d in durations], [0] * len(durations), edges)
    timeline = simulate(program)
    for task in range(len(durations)):
        ready = [timeline.end[a] for a, b in edges if b == task]
        assert timeline.start[task] == max(ready, default=0.0)


def test_without_doubt_every_draw_is_the_simulation() -> None:
    assert sample_ends(chain(5), doubt(5), count=4).tolist() == [5.0] * 4


def test_draws_are_the_same_for_the_same_seed() -> None:
    program, unsure = chain(20), doubt(20, own=0.3)
    assert sample_ends(program, unsure, 50, seed=7).tolist() == sample_ends(program, unsure, 50, seed=7).tolist()
    assert sample_ends(program, unsure, 50, seed=7).tolist() != sample_ends(program, unsure, 50, seed=8).tolist()


def test_what_tasks_have_of_their_own_averages_out_and_what_they_share_does_not() -> None:
    program = chain(400)
    own, common = (sample_ends(program, doubt(400, **{kind: 0.3}), 500) for kind in ("own", "common"))
    assert own.std() / own.mean() < 0.03
    assert 0.25 < np.log(common).std() < 0.35


def test_a_spread_of_their_own_does_not_make_a_long_chain_longer() -> None:
    ends = sample_ends(chain(2000), doubt(2000, own=0.4), 200)
    assert abs(ends.mean() / 2000 - 1) < 0.01


def test_a_factor_may_reach_further_up_than_down() -> None:
    one = np.zeros(1, np.int32)
    ends = sample_ends(
        TaskGraph.of([100.0], [0], []), Uncertainty(one, np.zeros(1), np.full(1, 0.5), one, np.ones(1)), 300
    )
    assert ends.min() == 100.0 and ends.max() > 150.0


def test_tasks_of_one_group_are_off_by_the_same_factor() -> None:
    together = Uncertainty(
        np.zeros(400, np.int32), np.full(1, 0.3), np.full(1, 0.3), np.zeros(1, np.int32), np.zeros(1)
    )
    assert np.log(sample_ends(chain(400), together, 300)).std() > 0.25


@pytest.mark.parametrize("group", [[0, 1], [0, 5, 0], [0, -1, 0]])
def test_a_group_that_is_not_there_is_refused_before_the_compiled_loop_sees_it(group: list[int]) -> None:
    one = np.zeros(1)
    with pytest.raises(ValueError, match="group"):
        sample_ends(chain(3), Uncertainty(np.array(group, np.int32), one, one, np.zeros(1, np.int32), one), 2)
