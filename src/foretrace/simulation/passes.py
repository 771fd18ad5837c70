"""Passes over a program: interpreted as long as a process runs few tasks, compiled from then on.

Both give the same times to the last bit; of draws, which are added up in another order, but for that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from foretrace.compiling import compiled, patience
from foretrace.simulation.chains import Chains
from foretrace.simulation.one_row import in_one_row, in_order
from foretrace.simulation.program import Program
from foretrace.simulation.turns import Floats, Ints, Rows, turns

TASK_MS, DRAWN_MS = 8e-4, 2e-5
"""What a task takes where it is interpreted, and each of its times where it has a vector of them."""
IN_ONE_ROW = 0.5
"""Share of that in programs that stand in one row."""

one_by_one, all_at_once = turns(max), turns(np.maximum)
as_machine_code = compiled(one_by_one)


def starts_and_ends(program: Program, duration: Floats) -> tuple[Floats, Floats]:
    """Of each task, if it takes what is given."""
    rows, tasks = Rows(program), len(program)
    if patience.allows(tasks * TASK_MS * _share(program)):
        if in_one_row(program):
            start, end = in_order(program, duration.tolist(), max)
        else:
            start, end = [0.0] * tasks, [0.0] * tasks
            _interpreted(one_by_one, program, rows, duration.tolist(), start, end)
        return np.array(start), np.array(end)
    starts, ends = np.empty(tasks), np.empty(tasks)
    as_machine_code(*_edges(program), rows.begins, rows.ends, rows.at, duration, starts, ends)
    rows.check_done()
    return starts, ends


def last_ends(program: Program, group: Ints, factor: Floats) -> Floats:
    """When the last task ends, in as many draws as factors have columns; their rows are those of groups of tasks."""
    rows, tasks, count = Rows(program), len(program), factor.shape[1]
    if patience.allows(tasks * (TASK_MS + count * DRAWN_MS) * _share(program)):
        each: list[Any] = [None] * tasks
        if in_one_row(program):
            chains = Chains(program)
            _, each = in_order(chains, chains.drawn(group, factor), np.maximum)
        else:
            # Nobody asks when tasks start: their ends are put in the same place.
            _interpreted(all_at_once, program, rows, _Drawn(program, group, factor), each, each)
        return reduce(np.maximum, each, np.zeros(count))
    lasts, starts, ends = np.empty(count), np.empty(tasks), np.empty(tasks)
    for turn in range(count):
        rows.at[:] = rows.begins
        duration = program.duration * factor[:, turn][group]
        as_machine_code(*_edges(program), rows.begins, rows.ends, rows.at, duration, starts, ends)
        lasts[turn] = ends.max(initial=0.0)
    rows.check_done()
    return lasts


def _share(program: Program) -> float:
    return IN_ONE_ROW if len(program.rows) <= 1 else 1.0


class _Drawn:
    """What tasks take in all draws: a vector for each, made when it is asked for."""

    def __init__(self, program: Program, group: Ints, factor: Floats) -> None:
        self._duration: list[float] = program.duration.tolist()
        self._group: list[int] = group.tolist()
        self._factor: list[Floats] = list(factor)

    def __getitem__(self, task: int) -> Floats:
        return self._factor[self._group[task]] * self._duration[task]


def _interpreted(run: Callable[..., None], program: Program, rows: Rows, *times: Any) -> None:
    """Over lists: Python takes numbers out of arrays one by one, and slowly."""
    edges, at = (some.tolist() for some in _edges(program)), rows.at.tolist()
    run(*edges, rows.begins.tolist(), rows.ends.tolist(), at, *times)
    rows.at[:] = at
    rows.check_done()


def _edges(program: Program) -> tuple[Any, ...]:
    return program.first, program.before, program.lag, program.release
