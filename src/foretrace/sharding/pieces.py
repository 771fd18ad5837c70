"""Pieces of tables, many at once: what one rank holds and looks up of a table, as columns of numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.sharding.hits import DOUBLINGS, Floats
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
