"""Tasks that do nothing but follow each other, taken as one: of a host's between two launches only the sum counts.

Whoever wants to know when the last task ends, many times over, has a third of the tasks to go through.
"""

from __future__ import annotations

import numpy as np

from foretrace.simulation.program import Program
from foretrace.simulation.turns import Floats, Ints, Longs

BLOCK = 256
"""Chains whose times are added up at once: these stay in the cache."""


class Chains:
    """The chains of a program that stands in one row, in the order of their first tasks.

    A task goes on with the chain of another where it waits for that one alone, and nobody else does. What waits for a
    chain so waits for the last of its tasks, and what the chain waits for is what the first one does.

    >>> fork = Program.of([1.0, 2.0, 4.0, 8.0], lane=[0, 0, 0, 1], edges=[(0, 1), (1, 2), (1, 3)], lag=0.5)
    >>> chains = Chains(fork)
    >>> chains.chain.tolist(), chains.first.tolist(), chains.before.tolist()
    ([0, 0, 1, 2], [0, 0, 1, 2], [0, 0])
    """

    def __init__(self, program: Program) -> None:
        waits, waited_for = np.diff(program.first), np.bincount(program.before, minlength=len(program))
        follower = np.flatnonzero(waits == 1)
        follower = follower[waited_for[program.before[program.first[follower]]] == 1]
        inner = program.first[follower]
        head = np.arange(len(program))
        head[follower] = program.before[inner]
        while ((further := head[head]) != head).any():  # twice as far back each time
            head = further
        heads = np.flatnonzero(head == np.arange(len(program)))
        self.chain: Longs = np.searchsorted(heads, head)
        """Of each task."""
        outer = np.ones(len(program.before), bool)
        outer[inner] = False
        after = self.chain[program.after[outer]]
        order = np.argsort(after, kind="stable")
        self.first: Longs = np.searchsorted(after[order], np.arange(len(heads) + 1))
        """Chain ``i`` waits for the chains ``before[first[i]:first[i + 1]]``, and ``lag`` longer."""
        self.before: Longs = self.chain[program.before[outer]][order]
        self.lag: Floats = program.lag[outer][order]
        self._inside = np.asarray(np.bincount(self.chain[follower], program.lag[inner], len(heads)), np.float64)
        self._duration = program.duration

    def __len__(self) -> int:
        return len(self.first) - 1

    def drawn(self, group: Ints, factor: Floats) -> Floats:
        """What each chain takes, a column a draw: the factors of a group of tasks are a row."""
        pieces, which = np.unique(self.chain * len(factor) + group, return_inverse=True)
        weight = np.bincount(which, self._duration, len(pieces))
        row, begins = pieces % len(factor), np.searchsorted(pieces, np.arange(len(self) + 1) * len(factor))
        result = np.empty((len(self), factor.shape[1]))
        for first in range(0, len(self), BLOCK):
            places = begins[first : first + BLOCK + 1]
            inside = slice(places[0], places[-1])
            np.add.reduceat(
                factor.take(row[inside], axis=0) * weight[inside, None],
                places[:-1] - places[0],
                out=result[first : first + BLOCK],
            )
        result += self._inside[:, None]
        return result
