"""The forward pass over a task graph: when each task starts and ends, or the deadlock that keeps some from starting.

Interpreted as long as a process simulates few tasks, compiled from then on; both give the same times to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrace._jit import compiled, jit_budget
from foretrace.simulation.task_graph import Floats, Longs, TaskGraph, Timeline

if TYPE_CHECKING:
    from foretrace.simulation.uncertainty import Chains

TASK_MS = 8e-4
"""What a task takes where the pass is interpreted."""
IN_ONE_ROW = 0.5
"""Share of that where all tasks stand in one row."""


class DeadlockError(ValueError):
    """Rows of tasks that wait for each other in a circle, or a row that waits for one of its own later tasks."""

    def __init__(self, held: dict[int, int]) -> None:
        self.held = held
        """For each row that can't go on, the task it stopped at and, as its value, the task that this one waits for."""
        super().__init__("; ".join(f"task {task} waits for task {other}" for task, other in held.items()))


def simulate(tasks: TaskGraph, duration: Floats | None = None) -> Timeline:
    """When each task starts and ends if none waits longer than it must.

    Durations may be given instead of the task graph's own. A `DeadlockError` names tasks that wait for each other in a
    circle.

    >>> tasks = TaskGraph.of(duration=[2.0, 5.0, 1.0], lane=[0, 1, 0], edges=[(0, 2), (1, 2)], lag=0.5)
    >>> simulate(tasks).start.tolist(), simulate(tasks, np.array([9.0, 5.0, 1.0])).span
    ([0.0, 0.0, 5.5], 10.5)
    """
    times = tasks.duration if duration is None else np.asarray(duration, np.float64)
    check_durations(tasks, times)
    return Timeline(*_starts_and_ends(tasks, times))


def check_durations(tasks: TaskGraph, duration: Floats) -> None:
    """Refuse durations that are negative, infinite or not a number: the loops trust what they are given."""
    if len(duration) != len(tasks):
        raise ValueError(f"{len(duration)} durations for {len(tasks)} tasks")
    if len(duration) and not (duration.min() >= 0 and duration.max() < np.inf):
        bad = np.flatnonzero(~(duration >= 0) | np.isinf(duration))
        raise ValueError(f"task {bad[0]} takes {duration[bad[0]]}")


class RowProgress:
    """The rows of a task graph, and the next task of each."""

    def __init__(self, tasks: TaskGraph) -> None:
        self.begins: Longs = tasks.row_starts if len(tasks.row_starts) else np.zeros(1, np.int64)
        self.ends: Longs = np.append(self.begins[1:], len(tasks))
        self.at: Longs = self.begins.copy()
        """The next task of each row."""
        self._before, self._first = tasks.before, tasks.first

    def check_done(self) -> None:
        """Raise a `DeadlockError` where some row has not reached its end."""
        held = {}
        for task in self.at[self.at < self.ends].tolist():
            others = self._before[self._first[task] : self._first[task + 1]]
            undone = others >= self.at[np.searchsorted(self.begins, others, "right") - 1]
            held[task] = int(others[undone][0])
        if held:
            raise DeadlockError(held)


def forward_pass(later: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """The pass over rows of tasks, as plain Python.

    ``later`` gives the later of two times: `max` for numbers, `numpy.maximum` for vectors that hold one time per
    sample. Interpreted, it runs over lists; compiled, over arrays.
    """

    def run_rows(
        first: Any,
        before: Any,
        lag: Any,
        release: Any,
        begins: Any,
        ends: Any,
        at: Any,
        duration: Any,
        start: Any,
        end: Any,
    ) -> None:
        """Each row goes on until a task waits for an unfinished one of another row, and again when that is done.

        ``at`` is left where each row stopped.
        """
        rows, released = len(begins), len(release) > 0
        # Of each row: the task it waits for; the last row that waits for one of its tasks; the row that did so before.
        held = np.empty(rows, np.int64)
        waiter, next_waiter = np.full(rows, -1, np.int32), np.full(rows, -1, np.int32)
        ready = np.arange(rows - 1, -1, -1)
        left = rows
        while left:
            left -= 1
            row = ready[left]
            task, begin, stop, stopped_by = at[row], begins[row], ends[row], -1
            while task < stop:
                time = release[task] if released else 0.0
                for edge in range(first[task], first[task + 1]):
                    other = before[edge]
                    if other < begin or other >= task:
                        its_row = np.searchsorted(begins, other, "right") - 1
                        if other >= at[its_row]:
                            stopped_by, held[row] = its_row, other
                            break
                    time = later(time, end[other] + lag[edge])
                if stopped_by >= 0:
                    break
                start[task] = time
                end[task] = time + duration[task]
                task += 1
            at[row] = task
            if stopped_by >= 0:
                next_waiter[row] = waiter[stopped_by]
                waiter[stopped_by] = row
            waits, waiter[row] = waiter[row], -1
            while waits >= 0:
                after = next_waiter[waits]
                if held[waits] < task:
                    ready[left] = waits
                    left += 1
                else:
                    next_waiter[waits] = waiter[row]
                    waiter[row] = waits
                waits = after

    return run_rows


interpreted_pass = forward_pass(max)
compiled_pass = compiled(interpreted_pass)


def in_one_row(tasks: TaskGraph) -> bool:
    """Whether all tasks may start at once, and each waits for earlier ones only, as those of one rank do.

    >>> in_one_row(TaskGraph.of([2.0, 1.0], lane=[0, 0], edges=[(0, 1)]))
    True
    """
    free = not len(tasks.release) and len(tasks.row_starts) <= 1
    return free and bool((tasks.before < tasks.after).all() and (tasks.lag >= 0).all())


def pass_in_order(
    tasks: TaskGraph | Chains, duration: Iterable[Any], later: Callable[[Any, Any], Any]
) -> tuple[list[Any], list[Any]]:
    """Starts and ends of tasks that stand in one row, interpreted; twice as fast as `forward_pass`.

    >>> pass_in_order(TaskGraph.of([2.0, 1.0], lane=[0, 0], edges=[(0, 1)], lag=0.5), [2.0, 1.0], max)
    ([0.0, 2.5], [2.0, 3.5])
    """
    before, lag = tasks.before.tolist(), tasks.lag.tolist()
    start, end = list[Any](), list[Any]()
    at = 0
    for until, took in zip(tasks.first[1:].tolist(), duration):
        time = 0.0
        if until > at:
            time = end[before[at]] + lag[at]
            for edge in range(at + 1, until):
                time = later(time, end[before[edge]] + lag[edge])
            at = until
        start.append(time)
        end.append(time + took)
    return start, end


def interpreted_ms(tasks: TaskGraph, task_ms: float) -> float:
    """What an interpreted pass takes, where a task takes so long in it."""
    return len(tasks) * task_ms * (IN_ONE_ROW if len(tasks.row_starts) <= 1 else 1.0)


def run_interpreted(run: Callable[..., None], tasks: TaskGraph, rows: RowProgress, *times: Any) -> None:
    """Run a pass over lists: Python takes numbers out of arrays one by one, and slowly."""
    edges, at = (column.tolist() for column in edge_columns(tasks)), rows.at.tolist()
    run(*edges, rows.begins.tolist(), rows.ends.tolist(), at, *times)
    rows.at[:] = at
    rows.check_done()


def edge_columns(tasks: TaskGraph) -> tuple[Any, ...]:
    """The columns of a task graph that a pass takes first."""
    return tasks.first, tasks.before, tasks.lag, tasks.release


def _starts_and_ends(tasks: TaskGraph, duration: Floats) -> tuple[Floats, Floats]:
    rows, count = RowProgress(tasks), len(tasks)
    if jit_budget.allows(interpreted_ms(tasks, TASK_MS)):
        if in_one_row(tasks):
            start, end = pass_in_order(tasks, duration.tolist(), max)
        else:
            start, end = [0.0] * count, [0.0] * count
            run_interpreted(interpreted_pass, tasks, rows, duration.tolist(), start, end)
        return np.array(start), np.array(end)
    starts, ends = np.empty(count), np.empty(count)
    compiled_pass(*edge_columns(tasks), rows.begins, rows.ends, rows.at, duration, starts, ends)
    rows.check_done()
    return starts, ends
