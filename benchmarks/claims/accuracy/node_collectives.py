"""Claim: collectives inside a node are predicted within 6 % at sizes and 12 % at numbers of ranks that were left out.

NCCL on nodes of A100, H100, H200, B200, L40S and GB200 (aiconfigurator's tables): each size but the first and the last
is left out in turn, which leaves sizes 16 times apart; shipped fabrics have sizes 4 times apart. Numbers of ranks:
XLA's tables of B200, H100 and GB200, with the outer ones fitted and those in between held against. Of both, the range
from the 10th to the 90th percentile must hold 80 %.

    python -m benchmarks.claims.accuracy.node_collectives
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from itertools import chain
from typing import Any

import numpy as np

from benchmarks.lib.node_tables import REDUCING, SYSTEMS, XLA_KINDS, aiconfigurator
from benchmarks.lib.process import shared
from benchmarks.lib.table import keep
from foretrace.cost_models.collectives.curves import fit_curves
from foretrace.cost_models.collectives.pricing import Range, price_collective
from foretrace.platform.fabric import Fabric, Links
from foretrace.platform.measurements.fabric import TimedCollective

SIZES, RANKS, LEAST_HELD = 0.06, 0.12, 0.8
OUTER = {"sm_100_B200": ("b200-nvswitch", (2, 8)), "sm_90": ("h100-nvswitch", (2, 8)),
         "sm_100_GB200": ("gb200-nvl72", (4, 16, 72))}  # fmt: skip
Pairs = list[tuple[Range, float]]


def line(what: str, how: str, pairs: Pairs, limit: float | None = None) -> dict[str, Any]:
    """Errors of expected against measured times."""
    off = np.array([abs(expected.typical / us - 1) for expected, us in pairs])
    gmae = float(np.exp(np.log(np.maximum(off, 1e-3)).mean()))
    held = float(np.mean([expected.low <= us <= expected.high for expected, us in pairs]))
    holds = limit is None or (gmae <= limit and held >= LEAST_HELD)
    return {"node": what, "left out": how, "rows": len(pairs), "gmae": round(gmae, 4), "held": round(held, 3),
            "limit": limit, "holds": holds}  # fmt: skip


def sizes_left_out(system: str) -> Pairs:
    """Each size by a fit on the others."""
    groups: defaultdict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (kind, ranks, _, nbytes), us in aiconfigurator(system):
        groups[kind, ranks][nbytes].append(us)
    pairs = []
    for (kind, ranks), by_size in groups.items():
        for missing in sorted(by_size)[1:-1]:
            seen = [TimedCollective(kind, ranks, 1, size, tuple(us)) for size, us in by_size.items() if size != missing]
            expected = price_collective(Fabric("", fit_curves(seen), ""), kind, missing, range(ranks))
            pairs += [(expected, us) for us in by_size[missing]]
    return pairs


def ranks_left_out(device: str) -> Pairs:
    """Numbers of ranks between those that are fitted."""
    links, outer = OUTER[device]
    with gzip.open(shared("public/xla") / "collective_perf_table.csv.gz", "rt") as lines:
        rows = [row for row in csv.DictReader(lines) if row["device"] == device and row["op"] in XLA_KINDS]
    times = [
        TimedCollective(XLA_KINDS[row["op"]], int(float(row["ranks_per_group"])), 1, nbytes, (1e6 * nbytes / rate,))
        for row in rows
        for nbytes, rate in [(int(row["elements"]), float(row["bytes_per_s"]))]
    ]
    fabric = Fabric("", fit_curves([one for one in times if one.ranks in outer]), "", Links.named(links))
    inner = [one for one in times if one.ranks not in outer]
    return [(price_collective(fabric, one.kind, one.nbytes, range(one.ranks)), one.us[0]) for one in inner]


def main() -> int:
    """Print and keep the table; 1 where a claim does not hold."""
    sizes = {system: sizes_left_out(system) for system in SYSTEMS.values()}
    ranks = {device: ranks_left_out(device) for device in OUTER}
    rows = [
        line("all", "sizes", list(chain.from_iterable(sizes.values())), SIZES),
        line("all", "ranks", list(chain.from_iterable(ranks.values())), RANKS),
        *(line(name, "sizes", pairs) for name, pairs in sizes.items()),
        *(line(name, "ranks", pairs) for name, pairs in ranks.items()),
    ]
    keep("node_collectives", rows)
    print(f"reductions ({', '.join(REDUCING)}) of floats")
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
