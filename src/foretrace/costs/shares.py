"""What share of a blend's answer is the trees', the rest being the net's: by op, as did best on calls not seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.costs.arrays import finite
from foretrace.costs.rows import Floats, Rows

HALF = 0.5
CHOICES = (HALF, 0.0, 1.0)
"""Shares of the trees that are tried. The first of equals is taken."""


@dataclass(frozen=True)
class Shares:
    """The trees' share of the answers to each op's calls; half where nothing is known.

    >>> rows = Rows(np.array([[0.0], [1.0], [2.0]]), np.zeros(3), np.zeros(3), np.zeros((0, 2)), [])
    >>> Shares(np.array([0.0, 1.0]), np.array([1.0, 0.0])).of(rows).tolist()
    [1.0, 0.0, 0.5]
    """

    ops: Floats = field(default_factory=lambda: np.zeros(0))
    """As the first column of the features has them, in order."""
    trees: Floats = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def best(cls, rows: Rows, trees_us: Floats, net_us: Floats) -> Shares:
        """Those that were off least in the mean, where trees and net said these times of calls they had not seen."""
        ops = np.unique(rows.features[:, 0])
        off = [
            np.abs(mixed(trees_us, net_us, np.full(len(rows), share)) / rows.us - 1).mean(axis=1) for share in CHOICES
        ]
        chosen = [int(np.argmin([each[rows.features[:, 0] == op].mean() for each in off])) for op in ops]
        return cls(ops, np.array([CHOICES[place] for place in chosen]))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its numbers, for a file."""
        return {"shares.ops": self.ops, "shares.trees": self.trees} if len(self.ops) else {}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Shares:
        """What `arrays` gave; a ValueError for numbers that are no shares."""
        if "shares.ops" not in arrays:
            return cls()
        ops = finite(arrays, "shares.ops", None)
        trees = finite(arrays, "shares.trees", len(ops))
        if trees.min() < 0 or trees.max() > 1:
            raise ValueError("shares.trees holds what is no share")
        return cls(ops, trees)

    def of(self, rows: Rows) -> Floats:
        """The trees' share for each row."""
        found = np.full(len(rows), HALF)
        for op, share in zip(self.ops, self.trees):
            found[rows.features[:, 0] == op] = share
        return found


def mixed(trees_us: Floats, net_us: Floats, share: Floats) -> Floats:
    """Between two answers, by their logarithms.

    >>> mixed(np.array([[1.0, 1.0]]), np.array([[4.0, 9.0]]), np.array([0.5])).tolist()
    [[2.0, 3.0]]
    """
    return np.asarray(trees_us ** share[:, None] * net_us ** (1 - share[:, None]))
