"""Claim: the energy of GEMMs that run for a second is predicted within 10 % on an H200, a B200 and a GB200.

That is the geometric mean. Published GEMMs with watts (aiconfigurator): joules are watts times time. Predicted are
both, the time as sustained under the power limit, for layers (n, k) that the constants of the draw were not fitted on.
Beside it, by how much the joules of a row are off the mean of its neighbours, the same layer for a few rows (m) less
and more: nothing that follows sizes smoothly can be much closer. On Blackwell that is 19 % and 28 %.

    python -m benchmarks.claims.accuracy.gemm_energy
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.fit.make_power import TABLES, Floats, Size, Sizes, burst_us, rows, shares, split, sustained
from benchmarks.lib.table import keep
from foretrace.platform.device import Device
from foretrace.platform.power import PowerModel

LIMIT, SAMPLE = 0.1, 3000
NEAR = 1.3
"""Times as many rows that a neighbour has at most."""


def gmae(ratio: Floats) -> float:
    """Geometric mean of the relative error."""
    return round(float(np.exp(np.log(np.maximum(np.abs(ratio - 1), 1e-3)).mean())), 4)


def between_neighbours(table: Sizes) -> float:
    """How far the joules of rows are off the mean of the next smaller and the next larger one."""
    layers: defaultdict[tuple[int, int], list[Size]] = defaultdict(list)
    for size in sorted(table):
        layers[size[1], size[2]].append(size)
    triples = [three for sizes in layers.values() for three in zip(sizes, sizes[1:], sizes[2:])]
    near = [[np.prod(table[size]) for size in three] for three in triples if three[2][0] <= NEAR * three[0][0]]
    before, own, after = np.array(near).T
    return gmae(own / np.sqrt(before * after))


def energy(gpu: str) -> dict[str, Any]:
    """Errors of watts and joules."""
    device, table = Device.named(gpu), rows("power_", TABLES[gpu], "0.22.0")
    sizes, model = split(table, SAMPLE)[1], PowerModel.of(device)
    assert model
    measured_us, measured_w = np.array([table[size] for size in sizes]).T
    us = burst_us(sizes, gpu)
    watts, longer = sustained(model.draw, model.slowdown, shares(sizes, us, device), us, model.limit_w)
    joules, neighbours = gmae(watts * longer / (measured_w * measured_us)), between_neighbours(table)
    found = {"gpu": gpu, "rows": len(sizes), "watts": gmae(watts / measured_w), "time": gmae(longer / measured_us)}
    return {**found, "joules": joules, "neighbours": neighbours, "limit": LIMIT, "holds": joules <= LIMIT}


def main() -> int:
    """Print and keep the table; 1 where the claim does not hold."""
    found = [energy(gpu) for gpu in TABLES]
    missed = [f"{row['gpu']} {row['joules']:.1%}" for row in found if not row["holds"]]
    keep("gemm_energy", found, verdict=f"Does not hold: {', '.join(missed)} (10 %)" if missed else None)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
