"""Claim: collectives are predicted within 20 % by the specification of links, within 5 % by a fit on half the sizes.

On every published table of nccl-tests, the geometric mean of the relative error. By specification: the constants that
no specification has, and what driving the tests costs, are fitted on all tables but the one held against. By a fit:
curves through every other size are held against the sizes in between. Of both, the range from the 10th to the 90th
percentile must hold 70 % or more. A table left out often has others of the same kind of machine among those that are
fitted; ``machines left out`` says what is predicted where it has none (no claim).

    python -m benchmarks.claims.accuracy.collectives [shared/public/nccl]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit.link_fit import by_machine, by_table, left_out
from benchmarks.lib.nccl_tables import TABLES, Table, tables
from benchmarks.lib.table import keep
from foretrace.cost_models.collectives.curves import fit_curves
from foretrace.cost_models.collectives.pricing import Range, price_collective
from foretrace.cost_models.collectives.topology import LinkConstants
from foretrace.platform.fabric import Fabric

Floats = NDArray[np.float64]

SPECIFIED, FITTED, LEAST_INSIDE = 0.20, 0.05, 0.7


class Held(NamedTuple):
    """Times as they were expected, against those of a table."""

    expected: Floats
    low: Floats
    high: Floats
    us: Floats

    def line(self, table: str, how: str) -> dict[str, object]:
        misses = np.abs(self.expected / self.us - 1)
        return {
            "table": table,
            "how": how,
            "sizes": len(misses),
            "gmae": float(np.exp(np.log(np.maximum(misses, 1e-4)).mean())),
            "mean": float(misses.mean()),
            "p90": float(np.quantile(misses, 0.9)),
            "inside": float(((self.low <= self.us) & (self.us <= self.high)).mean()),
        }


def together(held: list[Held]) -> Held:
    return Held(*(np.concatenate(columns) for columns in zip(*held)))


def by_specification(table: Table, expected: Floats) -> Held:
    ranges = [Range.around(us, LinkConstants.shipped().spread) for us in expected.tolist()]
    low, _, high = np.array(ranges).T
    return Held(expected, low, high, table.us)


def by_half(table: Table) -> Held:
    fabric = Fabric(table.name, fit_curves(table.exchanges[::2]), "every other size")
    sizes = table.sizes[1::2].astype(int).tolist()
    group, per_node = range(table.ranks), -(-table.ranks // table.nodes)
    low, expected, high = np.array([price_collective(fabric, table.kind, size, group, per_node) for size in sizes]).T
    return Held(expected, low, high, table.us[1::2])


def main() -> int:
    found = tables(Path(sys.argv[1]) if len(sys.argv) > 1 else TABLES)
    specified = [by_specification(*one) for one in left_out(found, by_table)]
    alone = [by_specification(*one) for one in left_out(found, by_machine)]
    halves = [by_half(table) for table in found]
    claims = [
        {**together(specified).line("all", "specification"), "limit": SPECIFIED},
        {**together(halves).line("all", "half the sizes"), "limit": FITTED},
    ]
    for claim in claims:
        claim["holds"] = claim["gmae"] <= claim["limit"] and claim["inside"] >= LEAST_INSIDE
    rows = [*claims, together(alone).line("all", "machines left out")]
    for table, one, other in zip(found, specified, halves):
        rows += [one.line(table.name, "specification"), other.line(table.name, "half the sizes")]
    keep("collectives", rows)
    return int(not all(claim["holds"] for claim in claims))


if __name__ == "__main__":
    sys.exit(main())
