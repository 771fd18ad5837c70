"""Shards: what a rank holds of embedding tables, how often a batch accesses their rows, and the memory they take.

A row that a batch accesses often stays in the caches, but holds up updates that add its gradients one after the other.
So lookups are priced by an access histogram: how many rows are accessed once, 2-3 times, 4-7 times, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.kernels.features import uniform_indices
from foretrace.graph.tables import Floats, Longs
from foretrace.sharding.tables import ITEMSIZE, OPTIMIZER_STATE, Table

DTYPES = tuple(ITEMSIZE)
OPTIMIZERS = tuple(OPTIMIZER_STATE)
STATE_BYTES = np.array([OPTIMIZER_STATE[name] for name in OPTIMIZERS], np.float64)
ID_BYTES, EMBEDDING_BYTES = 8, 4
"""Bytes of an id, and of an element of an embedding."""
HISTOGRAM_BINS = 32
"""Bins of an access histogram: the last one holds rows that are accessed 2^31 times or more."""
POWER_LAW_STEPS = 192
"""Intervals of rows into which a power law is cut; the rows of one have the same probability."""
POISSON_TERMS_MEAN = 24.0
"""Mean accesses up to which a Poisson distribution is summed term by term; above, the logistic one is close enough."""
SAME_BATCH = 0.02
"""Up to this difference from the distinct rows of uniform ids, ids count as uniform."""


class Shard(NamedTuple):
    """The part of a table that one rank holds, and what it looks up there in a step."""

    table: Table
    rows: float
    dim: int
    bags: float
    """Embeddings that the lookups return: sums, or single rows of sequences."""
    ids: float
    unique: float
    """Distinct rows among the ids."""
    histogram: Floats
    """Rows by how often they are accessed."""
    replicated: bool = False
    """Whether all ranks hold the same, with a dense gradient that an all_reduce adds up."""


@dataclass(frozen=True)
class Shards:
    """Many shards as columns. Shards of one call are added up into one row.

    >>> table = Table("t", 100, 8)
    >>> two = Shards.of([Shard(table, 100, 8, 4, 40, 30, np.zeros(HISTOGRAM_BINS))] * 2)
    >>> two.fused(np.array([0, 0]), 1).ids.tolist()
    [80.0]
    """

    rows: Floats
    dim: Longs
    bags: Floats
    ids: Floats
    unique: Floats
    histogram: Floats
    dtype: Longs
    """Place in `DTYPES`."""
    optimizer: Longs
    """Place in `OPTIMIZERS`."""
    replicated: NDArray[np.bool_]
    sequence: NDArray[np.bool_]

    @classmethod
    def of(cls, shards: list[Shard]) -> Shards:
        """The columns of a list of shards."""
        numbers = np.array([(s.rows, s.bags, s.ids, s.unique) for s in shards], np.float64).reshape(-1, 4)
        codes = [(s.dim, DTYPES.index(s.table.dtype), OPTIMIZERS.index(s.table.optimizer)) for s in shards]
        flags = np.array([(s.replicated, s.table.sequence) for s in shards], np.bool_).reshape(-1, 2)
        rows, bags, ids, unique = (column.copy() for column in numbers.T)
        dim, dtype, optimizer = (column.copy() for column in np.array(codes, np.int64).reshape(-1, 3).T)
        histogram = np.array([s.histogram for s in shards], np.float64).reshape(len(shards), HISTOGRAM_BINS)
        return cls(rows, dim, bags, ids, unique, histogram, dtype, optimizer, flags[:, 0].copy(), flags[:, 1].copy())

    def __len__(self) -> int:
        return len(self.dim)

    @property
    def itemsize(self) -> Longs:
        """Bytes of an element."""
        return np.array(list(ITEMSIZE.values()))[self.dtype]

    @property
    def state_row_bytes(self) -> Floats:
        """Bytes of optimizer state of a row."""
        element, row = STATE_BYTES[self.optimizer].T
        return np.asarray(self.dim * element + row)

    @property
    def call_key(self) -> Longs:
        """Equal for shards that one call can look up: the same dim, dtype, optimizer and kind of lookup."""
        return np.asarray(((self.dim * len(DTYPES) + self.dtype) * len(OPTIMIZERS) + self.optimizer) * 4
                          + 2 * self.sequence + self.replicated)  # fmt: skip

    def select(self, rows: Longs | NDArray[np.bool_]) -> Shards:
        """Some of the shards, by their places or by a mask."""
        return Shards(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def repeated(self, copies: Floats) -> Shards:
        """Each shard as a call that looks up this many like it."""
        grown = {name: getattr(self, name) * copies for name in ("rows", "bags", "ids", "unique")}
        return replace(self, **grown, histogram=self.histogram * copies[:, None])

    def fused(self, group: Longs, groups: int) -> Shards:
        """Each group of shards, which must have one `call_key`, as one call."""
        first = np.zeros(groups, np.int64)
        first[group[::-1]] = np.arange(len(self))[::-1]
        histogram = np.zeros((groups, HISTOGRAM_BINS))
        np.add.at(histogram, group, self.histogram)
        names = ("rows", "bags", "ids", "unique")
        sums: dict[str, Any] = {name: sum_by(group, getattr(self, name), groups) for name in names}
        return replace(self.select(first), **sums, histogram=histogram)


class LookupTimes(NamedTuple):
    """Microseconds of shards, calls or ranks (rows), forward and backward (columns): 10th, 50th, 90th percentile."""

    low: Floats
    typical: Floats
    high: Floats


def sum_by(group: Longs, values: Floats, groups: int) -> Floats:
    """The sum of each group's values.

    >>> sum_by(np.array([0, 2, 0]), np.array([1.0, 2.0, 4.0]), 3).tolist()
    [5.0, 0.0, 2.0]
    """
    return np.asarray(np.bincount(group, values, groups), np.float64)


def shard_bytes(shards: Shards, sparse_gradients: bool) -> Floats:
    """Memory of each shard: weights, optimizer state, and the tensors of a step.

    PyTorch's own sparse gradients have a row of each id until the update; FBGEMM updates rows in its backward.
    """
    weights = shards.rows * shards.dim * shards.itemsize
    pooled = 2 * shards.bags * shards.dim * EMBEDDING_BYTES
    ids = shards.ids * ID_BYTES
    dense = np.where(shards.replicated, weights, 0.0)
    sparse = shards.ids * (shards.dim * shards.itemsize + ID_BYTES) * sparse_gradients
    state = shards.rows * shards.state_row_bytes
    return np.asarray(weights + state + pooled + ids + dense + np.where(shards.replicated, 0.0, sparse))


class Accesses(NamedTuple):
    """Accesses of a batch to a table."""

    ids: float
    unique: float
    """Distinct rows."""
    histogram: Floats
    """Rows that are accessed once, 2-3 times, 4-7 times, …"""


def accesses(table: Table, ids: float) -> Accesses:
    """Accesses by this many ids: by the table's histogram, its Zipf exponent, or else uniform.

    >>> even, skewed = accesses(Table("t", 1000, 8), 1000), accesses(Table("t", 1000, 8, zipf=1.2), 1000)
    >>> round(even.unique), skewed.unique < even.unique, round(float(even.histogram.sum()))
    (632, True, 632)
    """
    if table.reuse:
        return _by_histogram(table, ids)
    return _by_power_law(table.rows, table.zipf, float(ids))


def zipf_exponent(rows: int, ids: int, unique: int) -> float:
    """The Zipf exponent under which so many ids access so many distinct rows.

    >>> seen = _by_power_law(10_000, 0.9, 5000.0)
    >>> round(zipf_exponent(10_000, 5000, round(seen.unique)), 2)
    0.9
    """
    low, high = 0.0, 4.0
    if unique >= _by_power_law(rows, 0.0, float(ids)).unique * (1 - SAME_BATCH):
        return 0.0
    for _ in range(24):
        middle = (low + high) / 2
        more = _by_power_law(rows, middle, float(ids)).unique > unique
        low, high = (middle, high) if more else (low, middle)
    return round((low + high) / 2, 4)


def _by_histogram(table: Table, ids: float) -> Accesses:
    """As many distinct rows as the mean of the histogram gives; at most those of the table."""
    shares = np.array(table.reuse) / sum(table.reuse)
    typical = float((shares * (1.5 * 2.0 ** np.arange(len(shares)) - 0.5)).sum())
    unique = max(1.0, min(table.rows, ids, ids / typical))
    histogram = np.zeros(HISTOGRAM_BINS)
    # If the table has too few rows for the histogram, all of them are accessed more often.
    more = max(0.0, math.log2(max(1.0, ids / unique / typical)))
    whole, part = int(more), more % 1
    for place, share in enumerate(shares * unique):
        histogram[min(place + whole, HISTOGRAM_BINS - 1)] += (1 - part) * share
        histogram[min(place + whole + 1, HISTOGRAM_BINS - 1)] += part * share
    return Accesses(ids, unique, histogram)


@lru_cache(maxsize=4096)
def _by_power_law(rows: int, exponent: float, ids: float) -> Accesses:
    """Accesses of each row are Poisson distributed around its share of the ids."""
    histogram = np.zeros(HISTOGRAM_BINS)
    if exponent == 0:
        even = uniform_indices(rows, round(ids))
        np.add.at(histogram, np.minimum(np.arange(len(even.reuse)), HISTOGRAM_BINS - 1), even.reuse)
        return Accesses(ids, float(even.unique), histogram)
    edges = np.unique(np.round(np.geomspace(1, rows + 1, POWER_LAW_STEPS)))
    flat = 1 - exponent if abs(1 - exponent) > 1e-3 else 1e-3
    below = (edges**flat - 1) / ((rows + 1.0) ** flat - 1)
    width = np.diff(edges)
    mean = ids * np.diff(below) / width
    reached = _poisson_tail(mean, 2 ** np.arange(HISTOGRAM_BINS + 1))
    histogram[:] = (width[:, None] * -np.diff(reached, axis=1)).sum(axis=0)
    return Accesses(ids, float((width * -np.expm1(-mean)).sum()), histogram)


def _poisson_tail(mean: Floats, counts: NDArray[np.int64]) -> Floats:
    """The probability of at least so many accesses (columns), for each mean (rows)."""
    middle = np.maximum(mean, 1e-12)[:, None]
    tail = 1 / (1 + np.exp(np.clip(1.702 * (counts - 0.5 - middle) / np.sqrt(middle), -50, 50)))
    few = mean <= POISSON_TERMS_MEAN
    terms = np.arange(int(4 * POISSON_TERMS_MEAN) + 1)
    log_factorials = np.cumsum(np.log(np.maximum(terms, 1)))
    probabilities = np.exp(terms * np.log(middle[few]) - middle[few] - log_factorials)
    exact = np.cumsum(probabilities[:, ::-1], axis=1)[:, ::-1]
    known = counts < len(terms)
    tail[few] = 0.0
    tail[np.ix_(few, known)] = exact[:, counts[known]]
    return np.asarray(tail)
