"""Measures the calls that kernel models are scored on: drawn as those they are fitted to, from another seed.

python -m benchmarks.truth.held_out matrix convolutions lookups --out measurements/h200/heldout --minutes 1.5
"""

from __future__ import annotations

import argparse
from pathlib import Path

from foretrace.calibration.timing.device import find_device
from foretrace.calibration.timing.kernels import measure_families, reference_drift
from foretrace.calibration.timing.workers import Workers, workers_for
from foretrace.cost_models.kernels.families import HELD_OUT


def main() -> None:
    """Measure, and print how much and how well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="all where none is named")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=1.5)
    parser.add_argument("--on")
    given = parser.parse_args()
    device = find_device(given.on)
    with Workers(device, workers_for(device, 60 * given.minutes)) as workers:
        done = measure_families(given.out, device, given.minutes, given.families, series=HELD_OUT, workers=workers)
    for family in done:
        print(f"{family.family:<14}{family.cases:>7,} cases{family.failed:>5,} failed{family.spread:>7.1%} spread")
    print(f"the reference GEMM took up to {reference_drift(done):.1%} longer")


if __name__ == "__main__":
    main()
