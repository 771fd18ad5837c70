"""Fits what FBGEMM's batched lookups take on published measurements of one H100, as shares of its memory's rate.

Tables in the GPU's own memory, SGD and Adam, forward and backward: four times, three shares. Two more backwards, of
rows in a cache that holds all of them, show how far off that is. The other rows of the file are of tables in the host's
memory: they tell the rate of its link.

    python -m benchmarks.fit.sharding_tbe [shared/public/sharding]          (writes
    src/foretrace/cost_models/kernels/batched_lookups.json)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.sharding_tasks import PUBLIC
from foretrace.cost_models.kernels.batched_lookups import TBE_FILE
from foretrace.sharding.linear_models import tbe_bytes
from foretrace.sharding.shards import HISTOGRAM_BINS, Shard, Shards
from foretrace.sharding.tables import Table

H100_GBPS = 3350.0
CACHED = "sgd_caching"
"""How labels name tables in the host's memory whose rows lie in a cache on the device when they are updated."""


def shard_of(row: dict[str, Any]) -> Shard:
    """A measured lookup: rows by themselves, none pooled."""
    table = Table("t", sum(row["num_embeddings_per_feature"]), row["embedding_dim"], optimizer=row["optimizer_type"])
    ids = row["avg_n_total"]
    return Shard(table, table.rows, table.dim, ids, ids, row["avg_n_unique"], np.zeros(HISTOGRAM_BINS))


def main() -> None:
    public = Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLIC
    told = json.loads((public / "h100_tbe_measured.json").read_text())
    rows, cached = ([row for row in told if mark in row["label"]] for mark in ("_gpu_", CACHED))
    rate = H100_GBPS * 1e6  # bytes a millisecond
    looked_up, gradients, updated = (nbytes / rate for nbytes in tbe_bytes(Shards.of([shard_of(row) for row in rows])))
    forward, backward = (np.array([row[f"trc_{way}_ms"] for row in rows]) for way in ("forward", "backward"))
    slower = np.linalg.solve(np.stack([gradients, updated], axis=1), backward)
    _, gradients, updated = (nbytes / rate for nbytes in tbe_bytes(Shards.of([shard_of(row) for row in cached])))
    missed = np.array([gradients, updated]).T @ slower / [row["trc_backward_ms"] for row in cached] - 1
    words = {
        "looked_up_share": round(float((looked_up / forward).mean()), 3),
        "gradient_share": round(float(1 / slower[0]), 3),
        "updated_share": round(float(1 / slower[1]), 3),
        "spread": round(float(np.abs(missed).max()), 3),
        "provenance": "fitted by benchmarks.fit.sharding_tbe on one H100 80GB (3,350 GB/s), FBGEMM in HBM, "
        "fp32, dim 128"
        ", SGD and Adam, no pooling; spread: what it is off by for rows in a cache, SGD, which it was not fitted on: "
        "NVIDIA/recsys-examples 43465ae (BSD-3)",
    }
    TBE_FILE.write_text(json.dumps(words, indent=1) + "\n")
    print(words, "off", missed)


if __name__ == "__main__":
    main()
