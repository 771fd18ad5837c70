"""Candidate plans of each task, for `benchmarks.truth.sharding_truth` to time: ours, TorchRec's, heuristics, random
ones.

    python -m benchmarks.lib.sharding_candidates TORCHREC.json

writes benchmarks/data/sharding_tasks.json.gz; TORCHREC.json is what `benchmarks.lib.sharding_torchrec` writes.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.sharding_tasks import Task, tasks
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.sharding.costing import Communication, Costing
from foretrace.sharding.lookups import Fused
from foretrace.sharding.options import SHARDING_TYPES, sharding_options
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.search.iterated_local_search import search
from foretrace.sharding.tables import Table

FABRIC = "h100-8x"
MEMORY = 126e9
"""Bytes that a rank has for tables."""
SECONDS = 60.0
"""Long enough that searches end by themselves, whatever else the machine does."""
MIXED = 0.2
"""Part of the tables that are split at random."""
SPREADS = ("mixture", "hot set", "permuted")
TASKS = Path(__file__).resolve().parents[1] / "data" / "sharding_tasks.json.gz"


def costing_of(task: Task, platform: Platform) -> Costing:
    """Each rank looks up tables with rows as long by one call, as the truth does."""
    return Costing(task.tables, task.ranks, Fused(platform), Communication(Fabric.named(FABRIC), task.ranks))


def candidates(task: Task, platform: Platform, theirs: dict[str, Any]) -> dict[str, Plan]:
    """Ours, TorchRec's where it is known, the heuristics, random ones, one that splits at random."""
    found = search(costing_of(task, platform), MEMORY, SECONDS)
    plans = {"ours": found.plan, **found.plans}
    for seed in (1, 2):
        plans[f"split at random {seed}"] = split_at_random(task, seed)
    if task.name in theirs:
        placed = [theirs[task.name]["plan"][table.name] for table in task.tables]
        plans["torchrec"] = tuple(Placement(one["kind"], tuple(one["ranks"])) for one in placed)
    return plans


def split_at_random(task: Task, seed: int) -> Plan:
    """Whole tables on any rank, and some that are split."""
    draw = np.random.default_rng(seed)
    plan = []
    for table in task.tables:
        options = sharding_options(table, task.ranks)
        made = [one for one in options if one.sharding_type != "data_parallel" or table.rows <= 200_000]
        kind, count = made[int(draw.integers(len(made)))] if draw.random() < MIXED else made[0]
        anywhere = draw.permutation(task.ranks.world)[:count].tolist()
        ranks = anywhere if SHARDING_TYPES[kind].on_any_rank else range(count)
        plan.append(Placement(kind, tuple(sorted(ranks))))
    return tuple(plan)


def spreads(count: int = 120) -> list[dict[str, Any]]:
    """Lookups whose ids follow distributions that no model was fitted on."""
    draw = np.random.default_rng(8)
    cases = []
    for number in range(count):
        dim, pooling = int(draw.choice([16, 32, 64, 128, 256])), int(np.exp(draw.uniform(0, np.log(80))))
        bags = int(2 ** draw.uniform(9, min(15, 27 - np.log2(dim * pooling))))
        rows = int(np.exp(draw.uniform(np.log(2000), np.log(min(2e7, 4e9 / dim)))))
        cases.append({"rows": rows, "dim": dim, "bags": bags, "pooling": pooling, "spread": SPREADS[number % 3]})
    return cases


def told(task: Task, plans: dict[str, Plan]) -> dict[str, Any]:
    """A task and its candidates as the file has them: of each table its kind and its ranks."""
    return {
        "name": task.name,
        "world": task.ranks.world,
        "batch": task.ranks.batch,
        "tables": [_words(table) for table in task.tables],
        "plans": {name: [[placed.kind, list(placed.ranks)] for placed in plan] for name, plan in plans.items()},
    }


def _words(table: Table) -> dict[str, Any]:
    return {name: getattr(table, name) for name in ("name", "rows", "dim", "pooling", "zipf", "reuse")}


def main() -> None:
    theirs = json.loads(Path(sys.argv[1]).read_text())
    h200 = Platform.named("h200")
    made = []
    for task in tasks():
        made.append(told(task, candidates(task, h200, theirs)))
        print(f"{task.name}: {len(task.tables)} tables, {len(made[-1]['plans'])} plans", flush=True)
    words = json.dumps({"tasks": made, "spreads": spreads()}, separators=(",", ":"))
    TASKS.write_bytes(gzip.compress(words.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
