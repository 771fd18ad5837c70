"""Fits what specifications of links do not say on published tables, with what driving the tests cost beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.nccl_tables import Driven, Table
from foretrace.cost_models.collectives.topology import LinkConstants

Floats = NDArray[np.float64]

LINKS = {"call_us": 10.0, "hop_us": 1.0, "link_share": 0.8, "switch_share": 0.7, "network_hops": 1.0, "bend": 0.5}
DRIVEN = {"launch": 5.0, "exchange": 10.0, "pytorch": 50.0}
"""What is fitted, and where the search begins."""
AT_MOST_1 = ("link_share", "switch_share", "bend")
STRIDES = (0.3, 0.1, 0.03, 0.01)
"""By how much a constant is changed to see whether that is better, in logarithms."""


class Fit(NamedTuple):
    """What a set of tables shows."""

    links: LinkConstants
    driven: Driven


def fit(found: list[Table]) -> Fit:
    """The constants with the least mean error of the logarithm, every table counting the same."""
    best = np.log([*LINKS.values(), *DRIVEN.values()])
    miss = _miss(best, found)
    for stride in STRIDES:
        better = True
        while better:
            better = False
            for step in stride * np.concatenate([np.eye(len(best)), -np.eye(len(best))]):
                while (tried := _miss(best + step, found)) < miss:
                    best, miss, better = best + step, tried, True
    return _fit(best)


def left_out(found: list[Table], part: Callable[[Table], str]) -> Iterator[tuple[Table, Floats]]:
    """Every table with what a fit on the tables of all other parts expects of it."""
    for one in dict.fromkeys(part(table) for table in found):
        others = fit([table for table in found if part(table) != one])
        yield from ((table, table.expected(*others)) for table in found if part(table) == one)


def by_table(table: Table) -> str:
    return table.name


def by_machine(table: Table) -> str:
    return table.machine.links


def _fit(numbers: Floats) -> Fit:
    named = dict(zip([*LINKS, *DRIVEN], np.exp(numbers).tolist()))
    links = LinkConstants(**{name: named[name] for name in LINKS}, spread=1.0, provenance="being fitted")
    return Fit(links, Driven(**{name: named[name] for name in DRIVEN}))


def _miss(numbers: Floats, found: list[Table]) -> float:
    fitted = _fit(numbers)
    if any(getattr(fitted.links, name) > 1 for name in AT_MOST_1):
        return float("inf")
    return float(np.mean([np.abs(np.log(table.expected(*fitted) / table.us)).mean() for table in found]))
