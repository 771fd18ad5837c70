"""The families of kernels, how the time is shared among them, and their cases by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from foretrace.graph import ForetraceError
from foretrace.platform.cases import (
    attention,
    convolutions,
    copies,
    dropout,
    elementwise,
    fills,
    indexing,
    joins,
    lookups,
    losses,
    matrix,
    norms,
    optimizers,
    pooling,
    reductions,
    softmax,
    sorting,
    transfers,
)
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.compiled import COMPILED
from foretrace.platform.cases.draw import Draw


class Family(NamedTuple):
    """How cases of a family are drawn, and its share of the measuring time."""

    draw: Callable[[Draw], Case]
    share: float
    turns: int = 1
    """Cases in a row of the same shapes: a forward and its backward share what a library prepares for the shape."""
    planned: bool = False
    """Whether a library takes long to plan a shape that it has not seen: then several processes let it plan at once."""


FAMILIES = {
    "matrix": Family(matrix.draw, 20),
    "convolutions": Family(convolutions.draw, 24, planned=True),
    "attention": Family(attention.draw, 18, turns=2, planned=True),
    "lookups": Family(lookups.draw, 9),
    "elementwise": Family(elementwise.draw, 5),
    "norms": Family(norms.draw, 4),
    "optimizers": Family(optimizers.draw, 5),
    "copies": Family(copies.draw, 3),
    "reductions": Family(reductions.draw, 2.5),
    "indexing": Family(indexing.draw, 2),
    "softmax": Family(softmax.draw, 1.5),
    "sorting": Family(sorting.draw, 1.5),
    "transfers": Family(transfers.draw, 2),
    "joins": Family(joins.draw, 1.5),
    "losses": Family(losses.draw, 1),
    "dropout": Family(dropout.draw, 1),
    "pooling": Family(pooling.draw, 1.5),
    "fills": Family(fills.draw, 0.5),
}
"""The shares need not add up to anything: a family gets its part of the sum. Convolutions and attention get much for
few cases, since cuDNN takes up to a tenth of a second to choose its kernels for a shape it has not seen."""

MEASURED = (*FAMILIES, COMPILED)
"""All that can be measured: beside them, what a compiler makes."""

HELD_OUT = "heldout-5"
"""The series of cases that models are scored on and never fitted to."""


def case_number(family: str, number: int, most: int, kind: str, series: str = "") -> Case:
    """The case of a family that has this number in a series: always the same one.

    >>> case_number("matrix", 7, 4096, "cpu") == case_number("matrix", 7, 4096, "cpu")
    True
    >>> case_number("matrix", 7, 4096, "cpu") == case_number("matrix", 7, 4096, "cpu", series=HELD_OUT)
    False
    """
    shapes, turn = divmod(number, FAMILIES[family].turns)
    return FAMILIES[family].draw(Draw(f"{family} {series}{shapes}", most, kind, turn))


def check_families(names: Sequence[str]) -> None:
    """Refuse what is no family."""
    for name in names:
        if name not in MEASURED:
            raise ForetraceError(f"no family is called {name!r}", f"Known are: {', '.join(MEASURED)}.")
