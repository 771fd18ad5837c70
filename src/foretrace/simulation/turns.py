"""Rows of tasks that wait for each other: all of them in one pass, or the knot that holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from foretrace.simulation.program import Program

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class StuckError(ValueError):
    """A task waits for one that can't be done before it: rows wait for each other, or a row for what comes later."""

    def __init__(self, held: dict[int, int]) -> None:
        self.held = held
        """For each row that can't go on, the task it stopped at and, as its value, the one that this waits for."""
        super().__init__("; ".join(f"task {task} waits for task {other}" for task, other in held.items()))


class Rows:
    """The rows of a program, and how far each has come."""

    def __init__(self, program: Program) -> None:
        self.begins: Longs = program.rows if len(program.rows) else np.zeros(1, np.int64)
        self.ends: Longs = np.append(self.begins[1:], len(program))
        self.at: Longs = self.begins.copy()
        """The next task of each."""
        self._before, self._first = program.before, program.first

    def check_done(self) -> None:
        """A `StuckError` where some can't go on."""
        held = {}
        for task in self.at[self.at < self.ends].tolist():
            others = self._before[self._first[task] : self._first[task + 1]]
            undone = others >= self.at[np.searchsorted(self.begins, others, "right") - 1]
            held[task] = int(others[undone][0])
        if held:
            raise StuckError(held)


def turns(later: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """The one pass, as plain Python.

    Its times are what ``later`` tells the later of: numbers, with `max`; or with `numpy.maximum` vectors, of one number
    for each of many draws. Interpreted, it goes over lists of these; compiled, over arrays of numbers.
    """

    def take_turns(
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
        """Each row goes on until a task waits for one of another row that is not done, and then again when that is.

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

    return take_turns
