"""Claim: `foretrace advise` finds a plan within 1 % of the best one that simulating every plan finds, and simulates 5 %
of the plans (of small spaces, 40) or fewer.

Spaces are those of small GPTs of several shapes, on several platforms and numbers of GPUs.

    PYTHONPATH=src:examples python -m benchmarks.claims.accuracy.advice [SPACES]
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import gpt
from benchmarks.lib.table import keep
from foretrace.graph import Job
from foretrace.record.sketch.sketch import sketch
from foretrace.whatif.advise import FEWEST, MAX_SHARE, Search
from foretrace.whatif.what_if import one_step

SHAPES = {
    "narrow": gpt.Shape(4, 8, 512, 8192, 256, 16),
    "wide": gpt.Shape(2, 16, 2048, 32000, 512, 4),
    "deep": gpt.Shape(8, 8, 256, 4096, 128, 32),
}
SPACES = [
    ("narrow", "h200", 4), ("wide", "h200", 4), ("narrow", "a100", 8), ("wide", "h100", 8), ("deep", "h200", 2),
    ("deep", "a100", 4), ("wide", "a100-40gb", 2), ("narrow", "h100", 2), ("deep", "h100", 8), ("wide", "b200", 4),
    ("narrow", "b200", 8), ("deep", "b200", 4),
]  # fmt: skip
WITHIN = 0.01


def main() -> int:
    rows: list[dict[str, Any]] = []
    for shape, platform, world in SPACES[: int(sys.argv[1]) if len(sys.argv) > 1 else None]:
        gpt.PRESETS[shape] = SHAPES[shape]
        job = one_step(Job([sketch(partial(gpt.make_step, shape, device="cuda"), device="cuda")]))
        search = Search(job, platform, world)
        search.run(None, lambda text: None)
        found = min(plan.sample_us for plan in search.plans if plan.fits)
        simulated = search.simulated
        best = min(plan.sample_us for plan in search.all_plans() if plan.fits)
        allowed = max(FEWEST, MAX_SHARE * search.space)
        rows.append(
            {
                "step": shape,
                "on": platform,
                "GPUs": world,
                "plans": search.space,
                "simulated": simulated,
                "off": found / best - 1,
                "holds": found <= best * (1 + WITHIN) and simulated <= allowed,
            }
        )
        keep("advice", rows)
    missed = [f"{row['step']} on {row['GPUs']} x {row['on']}" for row in rows if not row["holds"]]
    keep("advice", rows, verdict=f"Does not hold for {', '.join(missed)}" if missed else None)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
