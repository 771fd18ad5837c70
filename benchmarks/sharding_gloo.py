"""Claim: of 12 hybrid DLRM jobs on 4 and 8 gloo ranks, the plan picked is within 10 % of the fastest in 90 %.

Each candidate plan is run end to end on the CPUs of one machine: ids to the tables, lookups, embeddings back, dense
layers, gradients the other way, updates; the median step. The plan is picked by the models of the same machine: its
gloo, and its lookups while as many processes look up at once, calibrated for half a minute. Nothing is exchanged ahead
here, so that ranks wait for the slowest after the lookups and after the updates, each by itself.

    python -m benchmarks.sharding_gloo OUT          (of `python -m benchmarks.sharding_gloo_truth OUT`)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sharding_gloo_costs import predicted
from benchmarks.sharding_gloo_jobs import BATCH, PHASES, WORLDS, jobs, owners
from benchmarks.table import keep
from foretrace.fitting import fit
from foretrace.platform.folder import INDEX

WITHIN, OF = 0.10, 0.90


def measured(out: Path) -> dict[str, dict[str, Any]]:
    """What was timed of each job."""
    files = [out / f"jobs-{world}.jsonl" for world in WORLDS]
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    return {line["job"]: line for line in lines}


def places(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values))


def score(name: str, told: dict[str, Any], expected: dict[str, float]) -> dict[str, Any]:
    """A job: the plan that was picked against the fastest, and where the picked one's step went."""
    ms = told["ms"]
    pick, fastest = min(expected, key=lambda plan: expected[plan]), min(ms.values())
    order = np.corrcoef(places(list(expected.values())), places([ms[plan] for plan in expected]))
    return {
        "job": name, "fastest ms": fastest, "picked": pick, "picked ms": ms[pick], "predicted ms": expected[pick],
        "loss": ms[pick] / fastest - 1, "spearman": float(order[0, 1]), "spread": max(ms.values()) / fastest - 1,
        **{phase: max(told["phases"][pick][phase]) for phase in PHASES},
    }  # fmt: skip


def main() -> int:
    out = Path(sys.argv[1])
    told, rows = measured(out), []
    for name, world, tables in jobs():
        if name in told:
            platform = out / f"platform-{world}"
            if not (platform / INDEX).exists():  # measured where nothing can be fitted
                fit(platform)
            rows.append(score(name, told[name], predicted(tables, owners(tables, world), world, platform, BATCH)))
    within = float(np.mean([row["loss"] <= WITHIN for row in rows]))
    means = {what: float(np.mean([row[what] for row in rows])) for what in ("loss", "spearman", "spread")}
    keep("sharding_gloo", [*rows, {**dict.fromkeys(rows[0]), "job": f"all: {within:.0%} within 10 %", **means}])
    return int(within < OF)


if __name__ == "__main__":
    sys.exit(main())
