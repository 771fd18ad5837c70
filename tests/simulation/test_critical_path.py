"""The walk back from the last end."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foretrace.simulation.critical_path import CriticalPath, critical_path
from foretrace.simulation.task_graph import TaskGraph, Timeline


def walk(times: list[tuple[float, float]], edges: list[tuple[int, int]]) -> CriticalPath:
    start, end = (np.array(column, np.float64) for column in zip(*times))
    return critical_path(TaskGraph.of(end - start, np.zeros(len(times), np.int32), edges), Timeline(start, end))


def test_the_path_ends_with_the_task_that_ends_last() -> None:
    path = walk([(0, 9), (0, 4), (4, 7)], [(1, 2)])
    assert path.task.tolist() == [0]


def test_the_predecessor_that_ended_last_binds() -> None:
    path = walk([(0, 3), (0, 5), (5, 6)], [(0, 2), (1, 2)])
    assert path.task.tolist() == [1, 2]


def test_time_in_which_nothing_known_ran_is_a_gap() -> None:
    path = walk([(0, 3), (5, 6)], [(0, 1)])
    assert path.gap.tolist() == [0.0, 2.0]
    assert path.length == 6.0


def test_a_leg_ends_where_the_next_task_starts_even_if_its_own_task_runs_on() -> None:
    path = walk([(0, 10), (8, 20)], [(0, 1)])
    assert path.end.tolist() == [8.0, 20.0]
    assert path.length == 20.0


def test_of_two_that_release_a_task_at_once_the_later_to_start_binds() -> None:
    path = walk([(0, 5), (4, 6), (5, 9)], [(0, 2), (1, 2)])
    assert path.task.tolist() == [1, 2]


def test_an_empty_program_has_an_empty_path() -> None:
    path = critical_path(TaskGraph.of([], [], []), Timeline(np.zeros(0), np.zeros(0)))
    assert path.length == 0.0 and not len(path.task)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=30), st.data())
def test_legs_and_gaps_add_up_to_the_length(tasks: list[tuple[int, int]], data: st.DataObject) -> None:
    times = sorted((float(start), float(start + length)) for start, length in tasks)
    pairs = [(a, b) for b in range(len(times)) for a in range(b)]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    path = walk(times, edges)
    assert (path.end >= path.start).all() and (path.gap >= 0).all()
    assert (path.end - path.start).sum() + path.gap.sum() == path.length
    assert path.end[-1] == max(end for _, end in times)
