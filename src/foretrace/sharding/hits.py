"""How often the rows of a table are hit in a batch: from a histogram, a Zipf exponent, or nothing at all."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.features import evenly
from foretrace.sharding.tables import Table

Floats = NDArray[np.float64]

DOUBLINGS = 32
"""Bins of a histogram: the last holds rows that are hit 2^31 times or more."""
STEPS = 192
"""Stretches into which a power law is cut: its rows are alike in each."""
SMALL = 24.0
"""Mean hits up to which Poisson's law is added up term by term; above, it is near enough to the logistic one."""
CLOSE = 0.02
"""A batch whose size differs by less is the one that a histogram was taken of."""


class Hits(NamedTuple):
    """What a batch asks of a table: ids, distinct ones, and rows by how often they are hit: once, 2-3 times, 4-7, …"""

    ids: float
    unique: float
    reuse: Floats


def hits(table: Table, count: float) -> Hits:
    """Of so many ids of the table.

    >>> even, skewed = hits(Table("t", 1000, 8), 1000), hits(Table("t", 1000, 8, zipf=1.2), 1000)
    >>> round(even.unique), skewed.unique < even.unique, round(float(even.reuse.sum()))
    (632, True, 632)
    """
    if table.reuse:
        return _by_histogram(table, count)
    return _by_power_law(table.rows, table.zipf, float(count))


def _by_histogram(table: Table, count: float) -> Hits:
    """As many distinct rows as the histogram's mean makes of the ids; the rows there are, where those are fewer."""
    shares = np.array(table.reuse) / sum(table.reuse)
    typical = float((shares * (1.5 * 2.0 ** np.arange(len(shares)) - 0.5)).sum())
    unique = max(1.0, min(table.rows, count, count / typical))
    reuse = np.zeros(DOUBLINGS)
    # Where the table has too few rows for the histogram, all are hit more often.
    more = max(0.0, math.log2(max(1.0, count / unique / typical)))
    whole, part = int(more), more % 1
    for place, share in enumerate(shares * unique):
        reuse[min(place + whole, DOUBLINGS - 1)] += (1 - part) * share
        reuse[min(place + whole + 1, DOUBLINGS - 1)] += part * share
    return Hits(count, unique, reuse)


@lru_cache(maxsize=4096)
def _by_power_law(rows: int, exponent: float, count: float) -> Hits:
    """Hits of each row follow Poisson's law around its share of the ids."""
    reuse = np.zeros(DOUBLINGS)
    if exponent == 0:
        even = evenly(rows, round(count))
        reuse[: len(even.reuse)] = even.reuse
        return Hits(count, float(even.unique), reuse)
    edges = np.unique(np.round(np.geomspace(1, rows + 1, STEPS)))
    flat = 1 - exponent if abs(1 - exponent) > 1e-3 else 1e-3
    below = (edges**flat - 1) / ((rows + 1.0) ** flat - 1)
    width = np.diff(edges)
    mean = count * np.diff(below) / width
    reached = _at_least(mean, 2 ** np.arange(DOUBLINGS + 1))
    reuse[:] = (width[:, None] * -np.diff(reached, axis=1)).sum(axis=0)
    return Hits(count, float((width * -np.expm1(-mean)).sum()), reuse)


def _at_least(mean: Floats, hits: NDArray[np.int64]) -> Floats:
    """The chance of so many hits or more, for each mean (rows) and number of hits (columns)."""
    middle = np.maximum(mean, 1e-12)[:, None]
    by_shape = 1 / (1 + np.exp(np.clip(1.702 * (hits - 0.5 - middle) / np.sqrt(middle), -50, 50)))
    few = mean <= SMALL
    terms = np.arange(int(4 * SMALL) + 1)
    factorials = np.cumsum(np.log(np.maximum(terms, 1)))
    chances = np.exp(terms * np.log(middle[few]) - middle[few] - factorials)
    tail = np.cumsum(chances[:, ::-1], axis=1)[:, ::-1]
    known = hits < len(terms)
    by_shape[few] = 0.0
    by_shape[np.ix_(few, known)] = tail[:, hits[known]]
    return np.asarray(by_shape)


def exponent_of(rows: int, count: int, unique: int) -> float:
    """The Zipf exponent under which so many ids hit so many distinct rows.

    >>> seen = _by_power_law(10_000, 0.9, 5000.0)
    >>> round(exponent_of(10_000, 5000, round(seen.unique)), 2)
    0.9
    """
    low, high = 0.0, 4.0
    if unique >= _by_power_law(rows, 0.0, float(count)).unique * (1 - CLOSE):
        return 0.0
    for _ in range(24):
        middle = (low + high) / 2
        more = _by_power_law(rows, middle, float(count)).unique > unique
        low, high = (middle, high) if more else (low, middle)
    return round((low + high) / 2, 4)
