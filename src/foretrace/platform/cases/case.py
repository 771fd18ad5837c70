"""One call to time, and what its arguments' shapes do not say."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.graph import Op


@dataclass(frozen=True, slots=True)
class Ids:
    """How row ids are spread over a table: a power law, or a histogram of how often a row is hit.

    >>> Ids(count=1000, skew=1.05).reuse
    ()
    """

    count: int
    skew: float = 0.0
    """Exponent of a power law over the rows; 0 is uniform."""
    reuse: tuple[float, ...] = ()
    """Where given: ``reuse[k]`` is the share of the hit rows that are hit between 2^k and 2^(k+1) - 1 times."""
    distinct: int = 0
    """Rows that are hit at all, where that is known and not only how often they are."""
    tables: int = 1
    """Tables that lie one after the other in one, each with its part of the ids and spread alike."""


@dataclass(frozen=True, slots=True)
class Case:
    """A dispatcher call to time. A tensor with no device is on the one that is measured.

    >>> from foretrace.graph import Tensor
    >>> Case(Op("aten::relu", (Tensor((8,), "float32"),), overload="default")).op.name
    'aten::relu'
    """

    op: Op
    ids: Ids | None = None
    """How the ids among the arguments are spread, for calls that read or write rows by id."""
    tf32: bool = False
    """Whether float32 products may run on the matrix units."""
    pinned: bool = False
    """Whether tensors on the host lie in pinned memory."""
