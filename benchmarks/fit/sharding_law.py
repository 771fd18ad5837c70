"""Fits the linear model of fused lookups on loads that `benchmarks.truth.sharding_truth` timed and `sharding` does not
score.

python -m benchmarks.fit.sharding_law          (writes src/foretrace/sharding/data/fused_h200.json)
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from benchmarks.lib.sharding_loads import EXTRA, Load, loads
from foretrace.graph.tables import Floats
from foretrace.sharding.linear_models import TERMS, fused_file, terms
from foretrace.sharding.shards import Shards

FILE = fused_file("h200")


def calls_of(load: Load) -> Shards:
    """The calls that a rank makes: one for shards of one dim, dtype and optimizer."""
    groups, group = np.unique(load.shards.call_key, return_inverse=True)
    return load.shards.fused(group.ravel(), len(groups))


def rows_of(found: list[Load]) -> tuple[Floats, Floats]:
    """What the calls of each load have of each term, and microseconds of both phases."""
    calls = [calls_of(load) for load in found]
    moved = np.array([terms(call).sum(axis=0) for call in calls])
    return moved, np.array([load.us for load in found])


def fitted(moved: Floats, us: Floats) -> Floats:
    """Rates, none below zero, by least relative squares."""
    unit = np.maximum(moved.max(axis=0), 1e-12)
    rates, _ = nnls(moved / unit / us[:, None], np.ones(len(us)))
    return np.asarray(rates / unit)


def main() -> None:
    found = [load for load in loads() if load.task.startswith(EXTRA) and not load.shards.replicated.any()]
    moved, us = rows_of(found)
    forward, backward = (fitted(moved, us[:, phase]) for phase in (0, 1))
    tasks = np.array([load.task for load in found])
    off = []
    for task in np.unique(tasks):  # each task by a model that was fitted on the others
        mine = tasks == task
        other = np.stack([fitted(moved[~mine], us[~mine, phase]) for phase in (0, 1)], axis=1)
        off.append((moved[mine] @ other).sum(axis=1) / us[mine].sum(axis=1) - 1)
    missed = np.abs(np.concatenate(off))
    count = len(np.unique(tasks))
    print(f"{len(found)} loads of {count} tasks, each task left out in turn: {missed.mean():.2%} on average")
    words = {
        "forward": [float(f"{rate:.4g}") for rate in forward],
        "backward": [float(f"{rate:.4g}") for rate in backward],
        "spread": float(f"{np.quantile(missed, 0.9):.3g}"),
        "provenance": f"fitted by benchmarks.fit.sharding_law on {len(found)} loads of one H200 (torch 2.11); terms: "
        + ", ".join(TERMS),
    }
    FILE.write_text(json.dumps(words, indent=1) + "\n")
    print(FILE.relative_to(Path.cwd()) if FILE.is_relative_to(Path.cwd()) else FILE)


if __name__ == "__main__":
    main()
