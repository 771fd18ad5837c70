"""The pass over tasks that stand in one row, as those of one rank do: it never has to come back to any."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from foretrace.simulation.chains import Chains
from foretrace.simulation.program import Program


def in_one_row(program: Program) -> bool:
    """Whether all may start at once, and each waits for some before it only.

    >>> in_one_row(Program.of([2.0, 1.0], lane=[0, 0], edges=[(0, 1)]))
    True
    """
    free = not len(program.release) and len(program.rows) <= 1
    return free and bool((program.before < program.after).all() and (program.lag >= 0).all())


def in_order(
    program: Program | Chains, duration: Iterable[Any], later: Callable[[Any, Any], Any]
) -> tuple[list[Any], list[Any]]:
    """Starts and ends, as in `foretrace.simulation.turns`: interpreted, and twice as fast as that is.

    >>> in_order(Program.of([2.0, 1.0], lane=[0, 0], edges=[(0, 1)], lag=0.5), [2.0, 1.0], max)
    ([0.0, 2.5], [2.0, 3.5])
    """
    before, lag = program.before.tolist(), program.lag.tolist()
    start, end = list[Any](), list[Any]()
    at = 0
    for until, took in zip(program.first[1:].tolist(), duration):
        time = 0.0
        if until > at:
            time = end[before[at]] + lag[at]
            for edge in range(at + 1, until):
                time = later(time, end[before[edge]] + lag[edge])
            at = until
        start.append(time)
        end.append(time + took)
    return start, end
