"""Claim: the energy of GEMMs that run for a second is met within 20 % on an H200, a B200 and a GB200 (geometric mean).

Published GEMMs with watts (aiconfigurator): joules are watts times time. Predicted are both, the time as sustained
under the power limit. The three constants of each GPU's draw were fitted on such rows.

    python -m benchmarks.claims.accuracy.gemm_energy
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.fit.make_power import TABLES, rows, shares
from benchmarks.lib.table import keep
from foretrace.calibration.published import priced_us
from foretrace.cost_models.kernels.ratios import linear
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.platform.power import PowerModel

LIMIT, SAMPLE = 0.2, 3000


def energy(gpu: str) -> dict[str, Any]:
    """Errors of watts and joules."""
    device, table = Device.named(gpu), rows("power_", TABLES[gpu], "0.22.0")
    keys = list(table)
    sizes = [keys[place] for place in np.random.default_rng(3).permutation(len(keys))[:SAMPLE].tolist()]
    measured_us, measured_w = np.array([table[size] for size in sizes]).T
    us = priced_us([linear(*size) for size in sizes], Platform.named(gpu))
    model = PowerModel.of(device)
    assert model
    reached = list(zip(*(each.tolist() for each in shares(sizes, us, device))))
    watts = np.array([model.watts(*each) for each in reached])
    longer = us * np.array([model.slower(*each) for each in reached])

    def off(ratio: Any) -> float:
        return round(float(np.exp(np.log(np.maximum(np.abs(ratio - 1), 1e-3)).mean())), 4)

    joules = off(watts * longer / (measured_w * measured_us))
    found = {"gpu": gpu, "rows": len(sizes), "watts": off(watts / measured_w), "time": off(longer / measured_us)}
    return {**found, "joules": joules, "limit": LIMIT, "holds": joules <= LIMIT}


def main() -> int:
    """Print and keep the table; 1 where the claim does not hold."""
    found = [energy(gpu) for gpu in TABLES]
    keep("gemm_energy", found)
    return int(not all(row["holds"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
