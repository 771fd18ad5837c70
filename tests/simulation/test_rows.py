"""Rows of tasks that wait for each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.simulation.engine import DeadlockError, simulate
from foretrace.simulation.task_graph import TaskGraph


def rows_of(sizes: list[int], edges: list[tuple[int, int]], duration: float = 1.0) -> TaskGraph:
    """Rows of tasks one after the other, and edges between any of them."""
    begins = np.cumsum([0, *sizes])
    tasks = int(begins[-1])
    within = [(t - 1, t) for t in range(tasks) if t not in begins]
    after: list[list[int]] = [[] for _ in range(tasks)]
    for before, late in [*within, *edges]:
        after[late].append(before)
    first = np.cumsum([0, *(len(some) for some in after)])
    all_before = np.array([one for some in after for one in some], np.int32)
    lane = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return TaskGraph(
        np.full(tasks, duration), lane, first, all_before, np.zeros(len(all_before)), row_starts=begins[:-1]
    )


def test_a_row_goes_on_when_what_it_waits_for_in_a_later_row_is_done() -> None:
    program = rows_of([2, 2], [(3, 0)])
    assert simulate(program).start.tolist() == [2.0, 3.0, 0.0, 1.0]


def test_rows_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(DeadlockError) as stuck:
        simulate(rows_of([2, 2], [(3, 0), (1, 2)]))
    assert stuck.value.held == {0: 3, 2: 1}


def test_a_task_starts_no_sooner_than_it_is_released() -> None:
    program = TaskGraph.of([1.0, 1.0], [0, 1], [(0, 1)])
    late = TaskGraph(program.duration, program.lane, program.first, program.before, program.lag, np.array([5.0, 0.0]))
    assert simulate(late).start.tolist() == [5.0, 6.0]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_any_rows_without_a_circle_run_as_soon_as_they_may(sizes: list[int], data: st.DataObject) -> None:
    tasks = sum(sizes)
    # Edges that follow a shuffled merge of the rows can't make a circle.
    owners = data.draw(st.permutations([row for row, size in enumerate(sizes) for _ in range(size)]))
    begins, taken, place = np.cumsum([0, *sizes]), [0] * len(sizes), {}
    for turn, row in enumerate(owners):
        place[int(begins[row]) + taken[row]] = turn
        taken[row] += 1
    numbers = st.integers(0, tasks - 1)
    edges = [(a, b) for a, b in data.draw(st.lists(st.tuples(numbers, numbers), max_size=12)) if place[a] < place[b]]
    program = rows_of(sizes, edges)
    times = simulate(program)
    waited = np.zeros(tasks)
    np.maximum.at(waited, program.after, times.end[program.before])
    assert (times.start == waited).all(), "no sooner than it may, and no later"
