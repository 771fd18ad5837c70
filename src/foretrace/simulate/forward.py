"""One pass over the tasks, from the first to the last: when each starts and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.simulate.passes import last_ends, starts_and_ends
from foretrace.simulate.program import Program, Timeline
from foretrace.simulate.turns import Floats, Ints


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

    Worked out in place, since with many draws this takes longer than to simulate them.
    """
    numbers, weight = np.random.default_rng(seed), doubt.weight[:, None]
    own = numbers.standard_normal((count, len(doubt.down)), np.float32)
    common = numbers.standard_normal((count, int(doubt.common.max(initial=-1)) + 1), np.float32)
    number = np.sqrt(weight) * common.T[doubt.common]
    number += np.sqrt(1 - weight) * own.T
    spread = np.where(number > 0, doubt.up[:, None], doubt.down[:, None])
    number *= spread
    number -= (1 - weight) / 2 * spread**2
    return np.exp(number, out=number)


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
