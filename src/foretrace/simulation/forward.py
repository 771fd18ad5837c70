"""One pass over the tasks, from the first to the last: when each starts and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.simulation.passes import last_ends, starts_and_ends
from foretrace.simulation.program import Program, Timeline
from foretrace.simulation.turns import Floats, Ints

BLOCK = 64
"""Groups whose factors are worked out at once."""


def simulate(program: Program, duration: Floats | None = None) -> Timeline:
    """When each task starts and ends if none waits longer than it must.

    Parameters
    ----------
    program
        Tasks; a `StuckError` names those that wait for each other in a circle.
    duration
        What the tasks take instead of the program's own durations.

    Returns
    -------
    The timeline; it begins at 0.

    >>> program = Program.of(duration=[2.0, 5.0, 1.0], lane=[0, 1, 0], edges=[(0, 2), (1, 2)], lag=0.5)
    >>> simulate(program).start.tolist(), simulate(program, np.array([9.0, 5.0, 1.0])).span
    ([0.0, 0.0, 5.5], 10.5)
    """
    times = program.duration if duration is None else np.asarray(duration, np.float64)
    _check(program, times)
    return Timeline(*starts_and_ends(program, times))


@dataclass(frozen=True)
class Doubt:
    """How far durations may be off: as log-normal factors, one for each group of tasks.

    The logarithm of a group's factor is a standard normal number times its ``up`` where that is positive, else times
    its ``down``. The share ``weight`` of the number's variance is that of a number it has in common with all groups of
    the same ``common``; the rest is the group's own.
    """

    group: Ints
    """The group of each task."""
    down: Floats
    up: Floats
    common: Ints
    weight: Floats


def draw(program: Program, doubt: Doubt, count: int, seed: int = 0) -> Floats:
    """When the last task ends, in each of so many draws of all durations.

    What groups have of their own averages out over many of them and does not shift the mean; what they have in common
    does not average out, and shifts the median as little.

    >>> program = Program.of(duration=[2.0, 5.0], lane=[0, 0], edges=[(0, 1)])
    >>> sure = Doubt(np.array([0, 0], np.int32), np.zeros(1), np.zeros(1), np.zeros(1, np.int32), np.zeros(1))
    >>> draw(program, sure, count=3).tolist()
    [7.0, 7.0, 7.0]
    """
    _check(program, program.duration)
    _check_groups(program, doubt)
    return last_ends(program, doubt.group, _factors(doubt, count, seed))


def _factors(doubt: Doubt, count: int, seed: int) -> Floats:
    """What the times of each group are multiplied by: a column for each draw.

    Worked out for some groups after the others, whose numbers stay in the cache: with many draws this takes as long as
    to simulate them.
    """
    numbers, groups = np.random.default_rng(seed), len(doubt.down)
    own = numbers.standard_normal((count, groups), np.float32).T
    common = numbers.standard_normal((count, int(doubt.common.max(initial=-1)) + 1), np.float32).T
    factor = np.empty((groups, count))
    for first in range(0, groups, BLOCK):
        some = slice(first, first + BLOCK)
        weight, number = doubt.weight[some, None], factor[some]
        np.multiply(np.sqrt(weight), common[doubt.common[some]], out=number)
        number += np.sqrt(1 - weight) * own[some]
        spread = np.where(number > 0, doubt.up[some, None], doubt.down[some, None])
        number *= spread
        number -= (1 - weight) / 2 * spread**2
        np.exp(number, out=number)
    return factor


def _check_groups(program: Program, doubt: Doubt) -> None:
    if len(doubt.group) != len(program):
        raise ValueError(f"{len(doubt.group)} tasks have a group, of {len(program)}")
    if len(doubt.group) and not 0 <= doubt.group.min() <= doubt.group.max() < len(doubt.down):
        raise ValueError(f"groups go from {doubt.group.min()} to {doubt.group.max()}, and there are {len(doubt.down)}")


def _check(program: Program, duration: Floats) -> None:
    """Name a task that takes no time that there is: the loops trust what they are given."""
    if len(duration) != len(program):
        raise ValueError(f"{len(duration)} durations for {len(program)} tasks")
    if len(duration) and not (duration.min() >= 0 and duration.max() < np.inf):
        bad = np.flatnonzero(~(duration >= 0) | np.isinf(duration))
        raise ValueError(f"task {bad[0]} takes {duration[bad[0]]}")
