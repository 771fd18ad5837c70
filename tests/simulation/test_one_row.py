from __future__ import annotations

import numpy as np
import pytest

from foretrace.simulation.one_row import in_one_row, in_order
from foretrace.simulation.program import Program

PAIR = Program.of([2.0, 1.0], [0, 0], [(0, 1)])


@pytest.mark.parametrize(
    "other",
    [
        Program(PAIR.duration, PAIR.lane, PAIR.first, PAIR.before, PAIR.lag, release=np.array([1.0, 0.0])),
        Program(PAIR.duration, PAIR.lane, PAIR.first, PAIR.before, PAIR.lag, rows=np.array([0, 1])),
        Program(PAIR.duration, PAIR.lane, PAIR.first, np.array([1], np.int32), PAIR.lag),
        Program(PAIR.duration, PAIR.lane, PAIR.first, PAIR.before, np.array([-1.0])),
    ],
    ids=["released later", "two rows", "waits for itself", "starts before the other ends"],
)
def test_programs_of_other_kinds_do_not_stand_in_one_row(other: Program) -> None:
    assert in_one_row(PAIR) and not in_one_row(other)


def test_a_task_that_waits_for_nobody_starts_at_once_wherever_it_stands() -> None:
    start, end = in_order(Program.of([2.0, 1.0, 3.0], [0, 1, 1], [(0, 1)]), [2.0, 1.0, 3.0], max)
    assert (start, end) == ([0.0, 2.0, 0.0], [2.0, 3.0, 3.0])


def test_several_times_of_a_task_are_worked_out_at_once() -> None:
    program = Program.of([0.0] * 3, [0, 1, 0], [(0, 2), (1, 2)], lag=1.0)
    _, end = in_order(program, np.array([[1.0, 5.0], [3.0, 2.0], [1.0, 1.0]]), np.maximum)
    assert end[2].tolist() == [5.0, 7.0]
