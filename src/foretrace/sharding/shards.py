"""Pieces of tables, many at once: what one rank holds and looks up of a table, as columns of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.features import evenly
from foretrace.sharding.tables import ITEMSIZE, STATE, Table

Longs = NDArray[np.int64]

DTYPES = tuple(ITEMSIZE)
OPTIMIZERS = tuple(STATE)


def summed(group: Longs, values: Floats, groups: int) -> Floats:
    """The sum of each group's values.

    >>> summed(np.array([0, 2, 0]), np.array([1.0, 2.0, 4.0]), 3).tolist()
    [5.0, 0.0, 2.0]
    """
    return np.asarray(np.bincount(group, values, groups), np.float64)


class Priced(NamedTuple):
    """Microseconds of each piece (rows), forward and backward (columns): 10th percentile, median, 90th."""

    low: Floats
    typical: Floats
    high: Floats


class Piece(NamedTuple):
    """What one rank holds of a table, and what it looks up there in a step."""

    table: Table
    rows: float
    dim: int
    bags: float
    """Embeddings that it makes: sums, or rows by themselves."""
    ids: float
    """Those that it looks up."""
    unique: float
    reuse: Floats
    everywhere: bool = False
    """Whether all ranks hold the same, so that its gradient is a dense one that they add up."""


@dataclass(frozen=True)
class Pieces:
    """A row per piece. The sum of several is one call that looks them all up.

    >>> table = Table("t", 100, 8)
    >>> two = Pieces.of([Piece(table, 100, 8, 4, 40, 30, np.zeros(DOUBLINGS))] * 2)
    >>> two.together(np.array([0, 0]), 1).count.tolist()
    [80.0]
    """

    rows: Floats
    dim: Longs
    bags: Floats
    count: Floats
    unique: Floats
    reuse: Floats
    dtype: Longs
    optimizer: Longs
    everywhere: NDArray[np.bool_]
    sequence: NDArray[np.bool_]

    @classmethod
    def of(cls, pieces: list[Piece]) -> Pieces:
        """As columns."""
        return cls(
            rows=np.array([p.rows for p in pieces], np.float64),
            dim=np.array([p.dim for p in pieces], np.int64),
            bags=np.array([p.bags for p in pieces], np.float64),
            count=np.array([p.ids for p in pieces], np.float64),
            unique=np.array([p.unique for p in pieces], np.float64),
            reuse=np.array([p.reuse for p in pieces], np.float64).reshape(len(pieces), DOUBLINGS),
            dtype=np.array([DTYPES.index(p.table.dtype) for p in pieces], np.int64),
            optimizer=np.array([OPTIMIZERS.index(p.table.optimizer) for p in pieces], np.int64),
            everywhere=np.array([p.everywhere for p in pieces], np.bool_),
            sequence=np.array([p.table.sequence for p in pieces], np.bool_),
        )

    def __len__(self) -> int:
        return len(self.dim)

    @property
    def itemsize(self) -> Longs:
        """Bytes of an element."""
        return np.array(list(ITEMSIZE.values()))[self.dtype]

    @property
    def state_bytes(self) -> Floats:
        """What the optimizers keep of their rows."""
        element, row = np.array(list(STATE.values()), np.float64).reshape(-1, 2)[self.optimizer].T
        return np.asarray(self.rows * (self.dim * element + row))

    @property
    def kind(self) -> Longs:
        """Equal for pieces that one call may look up: rows as long, of one dtype, updated alike."""
        return np.asarray(((self.dim * len(DTYPES) + self.dtype) * len(OPTIMIZERS) + self.optimizer) * 4
                          + 2 * self.sequence + self.everywhere)  # fmt: skip

    def pick(self, rows: Longs | NDArray[np.bool_]) -> Pieces:
        """Some of them, by their places or by a mask."""
        return Pieces(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def times(self, copies: Floats) -> Pieces:
        """Each so many times over, in one call."""
        grown = {name: getattr(self, name) * copies for name in ("rows", "bags", "count", "unique")}
        return Pieces(**grown, reuse=self.reuse * copies[:, None], dim=self.dim, dtype=self.dtype,
                      optimizer=self.optimizer, everywhere=self.everywhere, sequence=self.sequence)  # fmt: skip

    def together(self, group: Longs, groups: int) -> Pieces:
        """Those of a group, which must be of one kind, looked up in one call."""
        first = np.zeros(groups, np.int64)
        first[group[::-1]] = np.arange(len(self))[::-1]
        reuse = np.zeros((groups, DOUBLINGS))
        np.add.at(reuse, group, self.reuse)
        rows, bags, count, unique = (
            summed(group, column, groups) for column in (self.rows, self.bags, self.count, self.unique)
        )
        return Pieces(rows, self.dim[first], bags, count, unique, reuse, self.dtype[first], self.optimizer[first],
                      self.everywhere[first], self.sequence[first])  # fmt: skip


# --- was sharding.hits: How often the rows of a table are hit in a batch: from a histogram, a Zipf exponent, or nothing at all.

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


# --- was sharding.memory: Bytes that pieces of tables take on a rank: weights, what the optimizer keeps, and what a step makes.

ID, OUTPUT = 8, 4
"""Bytes of an id, and of an element of a pooled embedding."""
KEPT_FREE = 0.1
"""Part of a device's memory that tables leave to the allocator, the libraries and what else a rank does."""


def memory(pieces: Pieces, gradients: bool) -> Floats:
    """Of each piece.

    Parameters
    ----------
    pieces
        What a rank may hold.
    gradients
        Whether a gradient of each id that is looked up is held until the update, as PyTorch's own sparse ones are;
        FBGEMM updates rows as it goes.
    """
    weights = pieces.rows * pieces.dim * pieces.itemsize
    pooled = 2 * pieces.bags * pieces.dim * OUTPUT
    ids = pieces.count * ID
    dense = np.where(pieces.everywhere, weights, 0.0)
    sparse = np.where(pieces.everywhere, 0.0, pieces.count * (pieces.dim * pieces.itemsize + ID) * gradients)
    return np.asarray(weights + pieces.state_bytes + pooled + ids + dense + sparse)
