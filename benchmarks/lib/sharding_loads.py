"""What `benchmarks.truth.sharding_truth` timed on the H200: each rank's load under each candidate plan of each task."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lib.sharding_tasks import Task
from foretrace.graph.tables import Floats
from foretrace.platform.platform import Platform
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Placement, Plan
from foretrace.sharding.shards import Shards
from foretrace.sharding.tables import Table

DATA = Path(__file__).resolve().parents[1] / "data"
SEEN = DATA / "sharding_truth.json.gz"
"""Tasks whose times were looked at while models were fitted."""
FRESH = DATA / "sharding_tasks.json.gz"
"""Tasks that were not, as `benchmarks.lib.sharding_candidates` writes them."""
TIMES = DATA / "sharding_times.jsonl.gz"
"""What `benchmarks.truth.sharding_truth` wrote of those."""
EXTRA = "x"
"""How the names of tasks begin that are there to fit on, and that nothing is scored on."""


class Candidate(NamedTuple):
    """A plan, and what each rank took under it: microseconds forward and backward."""

    plan: Plan
    us: Floats


class Load(NamedTuple):
    """What one rank holds, and what it took."""

    task: str
    shards: Shards
    us: Floats


def seen() -> dict[str, Any]:
    """Tasks with their plans and times, and lookups of unusual spreads."""
    words: dict[str, Any] = json.loads(gzip.decompress(SEEN.read_bytes()))
    return words


def fresh() -> dict[str, Any]:
    """The same of fresh tasks: those that were timed."""
    if not TIMES.exists():
        return {"tasks": [], "spreads": []}
    timed = {line["task"]: line for line in map(json.loads, gzip.decompress(TIMES.read_bytes()).splitlines())}
    told = json.loads(gzip.decompress(FRESH.read_bytes()))["tasks"]
    return {
        "tasks": [task | timed[task["name"]] for task in told if task["name"] in timed],
        "spreads": timed["spreads"]["cases"] if "spreads" in timed else [],
    }


def timed_tasks(measured: dict[str, Any]) -> Iterator[tuple[Task, dict[str, Candidate]]]:
    """Each task with its candidates."""
    for told in measured["tasks"]:
        tables = tuple(Table(**{**table, "reuse": tuple(table["reuse"])}) for table in told["tables"])
        task = Task(told["name"], Ranks(told["world"], told["world"], told["batch"]), tables)
        yield task, {name: Candidate(plan_of(told["plans"][name]), np.array(us)) for name, us in told["ranks"].items()}


def plan_of(words: list[list[Any]]) -> Plan:
    """A plan as the file has it: kind and ranks of each table, in order."""
    return tuple(Placement(kind, tuple(ranks)) for kind, ranks in words)


def loads() -> Iterator[Load]:
    """All ranks of all candidates of all tasks that were looked at."""
    from benchmarks.lib.sharding_candidates import costing_of

    h200 = Platform.named("h200")
    for task, candidates in timed_tasks(seen()):
        costing = costing_of(task, h200)
        for plan, us in candidates.values():
            shards, rank = costing.shards_of(plan)
            for number in range(task.ranks.world):
                mine = np.flatnonzero(rank == number)
                if len(mine):
                    yield Load(task.name, shards.select(mine), us[number])
