from __future__ import annotations

import numpy as np
import pytest

from foretrace.simulation.engine import in_one_row, pass_in_order
from foretrace.simulation.task_graph import TaskGraph

PAIR = TaskGraph.of([2.0, 1.0], [0, 0], [(0, 1)])


@pytest.mark.parametrize(
    "other",
    [
        TaskGraph(PAIR.duration, PAIR.lane, PAIR.first, PAIR.before, PAIR.lag, release=np.array([1.0, 0.0])),
        TaskGraph(PAIR.duration, PAIR.lane, PAIR.first, PAIR.before, PAIR.lag, row_starts=np.array([0, 1])),
        TaskGraph(PAIR.duration, PAIR.lane, PAIR.first, np.array([1], np.int32), PAIR.lag),
        TaskGraph(PAIR.duration, PAIR.lane, PAIR.first, PAIR.before, np.array([-1.0])),
    ],
    ids=["released later", "two rows", "waits for itself", "starts before the other ends"],
)
def test_programs_of_other_kinds_do_not_stand_in_one_row(other: TaskGraph) -> None:
    assert in_one_row(PAIR) and not in_one_row(other)


def test_a_task_that_waits_for_nobody_starts_at_once_wherever_it_stands() -> None:
    start, end = pass_in_order(TaskGraph.of([2.0, 1.0, 3.0], [0, 1, 1], [(0, 1)]), [2.0, 1.0, 3.0], max)
    assert (start, end) == ([0.0, 2.0, 0.0], [2.0, 3.0, 3.0])


def test_several_times_of_a_task_are_worked_out_at_once() -> None:
    program = TaskGraph.of([0.0] * 3, [0, 1, 0], [(0, 2), (1, 2)], lag=1.0)
    _, end = pass_in_order(program, np.array([[1.0, 5.0], [3.0, 2.0], [1.0, 1.0]]), np.maximum)
    assert end[2].tolist() == [5.0, 7.0]
