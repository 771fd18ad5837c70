"""The range of a step time: durations drawn from log-normal distributions, and the step simulated for each sample."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from foretrace._jit import jit_budget
from foretrace.simulation.engine import (
    TASK_MS,
    RowProgress,
    check_durations,
    compiled_pass,
    edge_columns,
    forward_pass,
    in_one_row,
    interpreted_ms,
    pass_in_order,
    run_interpreted,
)
from foretrace.simulation.task_graph import Floats, Ints, Longs, TaskGraph

SAMPLED_MS = 2e-5
"""What each sample of a task adds where the pass is interpreted."""
GROUPS_AT_ONCE = 64
"""Groups whose factors are worked out at once: these stay in the cache."""
CHAINS_AT_ONCE = 256
"""Chains whose times are added up at once: these stay in the cache."""


class Uncertainty(NamedTuple):
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


def sample_ends(tasks: TaskGraph, uncertainty: Uncertainty, count: int, seed: int = 0) -> Floats:
    """End of the last task in each of ``count`` samples of all durations.

    What groups have of their own averages out over many of them and does not shift the mean; what they have in common
    does not average out, and shifts the median as little.
    """
    check_durations(tasks, tasks.duration)
    _check_groups(tasks, uncertainty)
    return last_ends(tasks, uncertainty.group, sample_factors(uncertainty, count, seed))


def sample_factors(uncertainty: Uncertainty, count: int, seed: int) -> Floats:
    """What the durations of each group are multiplied by: one column per sample.

    Worked out for some groups after the others, whose numbers stay in the cache: with many samples this takes as long
    as simulating them.
    """
    numbers, groups = np.random.default_rng(seed), len(uncertainty.down)
    own = numbers.standard_normal((count, groups), np.float32).T
    common = numbers.standard_normal((count, int(uncertainty.common.max(initial=-1)) + 1), np.float32).T
    factor = np.empty((groups, count))
    for first in range(0, groups, GROUPS_AT_ONCE):
        some = slice(first, first + GROUPS_AT_ONCE)
        weight, number = uncertainty.weight[some, None], factor[some]
        np.multiply(np.sqrt(weight), common[uncertainty.common[some]], out=number)
        number += np.sqrt(1 - weight) * own[some]
        spread = np.where(number > 0, uncertainty.up[some, None], uncertainty.down[some, None])
        number *= spread
        number -= (1 - weight) / 2 * spread**2
        np.exp(number, out=number)
    return factor


def _check_groups(tasks: TaskGraph, uncertainty: Uncertainty) -> None:
    group, groups = uncertainty.group, len(uncertainty.down)
    if len(group) != len(tasks):
        raise ValueError(f"{len(group)} tasks have a group, of {len(tasks)}")
    if len(group) and not 0 <= group.min() <= group.max() < groups:
        raise ValueError(f"groups go from {group.min()} to {group.max()}, and there are {groups}")


sampled_pass = forward_pass(np.maximum)


def last_ends(tasks: TaskGraph, group: Ints, factor: Floats) -> Floats:
    """End of the last task in as many samples as ``factor`` has columns; its rows are those of groups of tasks.

    Interpreted and compiled passes add up in another order: their times agree but for rounding.
    """
    rows, count = RowProgress(tasks), factor.shape[1]
    if jit_budget.allows(interpreted_ms(tasks, TASK_MS + count * SAMPLED_MS)):
        each: list[Any] = [None] * len(tasks)
        if in_one_row(tasks):
            chains = Chains(tasks)
            _, each = pass_in_order(chains, chains.sampled(group, factor), np.maximum)
        else:
            # Only ends are asked for: starts are put in the same place.
            run_interpreted(sampled_pass, tasks, rows, _SampledDurations(tasks, group, factor), each, each)
        return reduce(np.maximum, each, np.zeros(count))
    lasts, starts, ends = np.empty(count), np.empty(len(tasks)), np.empty(len(tasks))
    for sample in range(count):
        rows.at[:] = rows.begins
        duration = tasks.duration * factor[:, sample][group]
        compiled_pass(*edge_columns(tasks), rows.begins, rows.ends, rows.at, duration, starts, ends)
        lasts[sample] = ends.max(initial=0.0)
    rows.check_done()
    return lasts


class _SampledDurations:
    """Durations of tasks in all samples: a vector for each, made when it is asked for."""

    def __init__(self, tasks: TaskGraph, group: Ints, factor: Floats) -> None:
        self._duration: list[float] = tasks.duration.tolist()
        self._group: list[int] = group.tolist()
        self._factor: list[Floats] = list(factor)

    def __getitem__(self, task: int) -> Floats:
        return self._factor[self._group[task]] * self._duration[task]


class Chains:
    """Tasks in one row that only follow each other, taken as one: of host time between two launches only the sum
    counts.

    A task continues the chain of another where it waits for that one alone, and no other task does. Whatever waits for
    a chain waits for the last of its tasks, and the chain waits for what its first task waits for. A sampled pass has a
    third of the tasks to go through.
    """

    def __init__(self, tasks: TaskGraph) -> None:
        waits, waited_for = np.diff(tasks.first), np.bincount(tasks.before, minlength=len(tasks))
        follower = np.flatnonzero(waits == 1)
        follower = follower[waited_for[tasks.before[tasks.first[follower]]] == 1]
        inner = tasks.first[follower]
        head = np.arange(len(tasks))
        head[follower] = tasks.before[inner]
        while ((further := head[head]) != head).any():  # twice as far back each time
            head = further
        heads = np.flatnonzero(head == np.arange(len(tasks)))
        self.chain: Longs = np.searchsorted(heads, head)
        """The chain of each task."""
        outer = np.ones(len(tasks.before), bool)
        outer[inner] = False
        after = self.chain[tasks.after[outer]]
        order = np.argsort(after, kind="stable")
        self.first: Longs = np.searchsorted(after[order], np.arange(len(heads) + 1))
        """Chain ``i`` waits for the chains ``before[first[i]:first[i + 1]]``, and ``lag`` longer."""
        self.before: Longs = self.chain[tasks.before[outer]][order]
        self.lag: Floats = tasks.lag[outer][order]
        self._inside = np.asarray(np.bincount(self.chain[follower], tasks.lag[inner], len(heads)), np.float64)
        self._duration = tasks.duration

    def __len__(self) -> int:
        return len(self.first) - 1

    def sampled(self, group: Ints, factor: Floats) -> Floats:
        """Duration of each chain, one column per sample: the factors of a group of tasks are a row."""
        pieces, which = np.unique(self.chain * len(factor) + group, return_inverse=True)
        weight = np.bincount(which, self._duration, len(pieces))
        row, begins = pieces % len(factor), np.searchsorted(pieces, np.arange(len(self) + 1) * len(factor))
        result = np.empty((len(self), factor.shape[1]))
        for first in range(0, len(self), CHAINS_AT_ONCE):
            places = begins[first : first + CHAINS_AT_ONCE + 1]
            inside = slice(places[0], places[-1])
            np.add.reduceat(
                factor.take(row[inside], axis=0) * weight[inside, None],
                places[:-1] - places[0],
                out=result[first : first + CHAINS_AT_ONCE],
            )
        result += self._inside[:, None]
        return result
