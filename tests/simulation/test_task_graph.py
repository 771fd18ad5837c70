"""Programs as arrays."""

import numpy as np
import pytest

from foretrace.simulation.task_graph import TaskGraph, Timeline


def test_edges_in_any_order_are_kept_by_the_task_that_waits() -> None:
    program = TaskGraph.of([1.0] * 4, [0] * 4, [(2, 3), (0, 1), (0, 3), (1, 2)])
    waits_for = [program.before[a:b].tolist() for a, b in zip(program.first[:-1], program.first[1:])]
    assert waits_for == [[], [0], [1], [2, 0]]
    assert program.after.tolist() == [1, 2, 3, 3]


def test_a_task_that_waits_for_a_later_one_is_named() -> None:
    with pytest.raises(ValueError, match="task 1 waits for task 2"):
        TaskGraph.of([1.0] * 3, [0] * 3, [(0, 1), (2, 1)])


def test_a_program_without_edges_has_only_free_tasks() -> None:
    program = TaskGraph.of([1.0, 2.0], [0, 1], [])
    assert len(program) == 2 and program.first.tolist() == [0, 0, 0]


def test_a_timeline_without_tasks_spans_no_time() -> None:
    assert Timeline(np.zeros(0), np.zeros(0)).span == 0.0
