"""Plans of TorchRec's planner for the tasks of `benchmarks.lib.sharding_tasks`, with its own constants for a GPU.

python -m benchmarks.lib.sharding_torchrec FILE          (adds what FILE lacks; minutes)
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from benchmarks.lib.sharding_tasks import Task, tasks
from foretrace.sharding.plan import Plan, plan_fields
from foretrace.sharding.torchrec import plan_of

MEMORY = 126_000_000_000
"""Bytes that a rank has for tables, in all plans."""


def collection_of(task: Task) -> EmbeddingBagCollection:
    """The task's tables, as TorchRec has them."""
    configs = [
        EmbeddingBagConfig(
            name=table.name, num_embeddings=table.rows, embedding_dim=table.dim, feature_names=[f"f{place}"]
        )
        for place, table in enumerate(task.tables)
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


def planner_of(task: Task, **others: Any) -> EmbeddingShardingPlanner:
    """TorchRec's planner; it knows how many ids a sample has."""
    topology = Topology(task.ranks.world, "cuda", hbm_cap=MEMORY, local_world_size=task.ranks.per_node)
    constraints = {table.name: ParameterConstraints(pooling_factors=[table.pooling]) for table in task.tables}
    return EmbeddingShardingPlanner(topology, task.ranks.batch, constraints=constraints, debug=False, **others)


def planned(task: Task) -> Plan:
    """What it plans."""
    return plan_of(planner_of(task).plan(collection_of(task), [EmbeddingBagCollectionSharder()]), task.tables)


def main() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    path = Path(sys.argv[1])
    found = json.loads(path.read_text()) if path.exists() else {}
    for task in sorted(tasks(), key=lambda task: len(task.tables)):  # the quick ones first
        if task.name in found:
            continue
        begun = time.monotonic()
        plan = planned(task)
        seconds = time.monotonic() - begun
        found[task.name] = {"seconds": round(seconds, 1), "plan": plan_fields(plan, task.tables)}
        path.write_text(json.dumps(found))
        print(f"{task.name}: {len(task.tables)} tables on {task.ranks.world} ranks, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
