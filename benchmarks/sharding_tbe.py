"""Fits what FBGEMM's batched lookups take on published measurements of one H100, as shares of its memory's rate.

Tables in the GPU's own memory, SGD and Adam, forward and backward: four times, three shares.

    python -m benchmarks.sharding_tbe [shared/public/sharding]          (writes src/foretrace/sharding/tbe.json)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from benchmarks.sharding_tasks import PUBLIC
from foretrace.sharding.hits import DOUBLINGS
from foretrace.sharding.pieces import Piece, Pieces
from foretrace.sharding.tables import Table
from foretrace.sharding.tbe import CONSTANTS, traffic

H100_GBPS = 3350.0
SPREAD = 0.15
"""How far other GPUs and shapes may be off: nobody measured that."""


def main() -> None:
    public = Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLIC
    told = json.loads((public / "h100_tbe_measured.json").read_text())
    rows = [row for row in told if "_gpu_" in row["label"]]
    pieces = []
    for row in rows:
        table = Table(
            "t", sum(row["num_embeddings_per_feature"]), row["embedding_dim"], optimizer=row["optimizer_type"]
        )
        ids = row["avg_n_total"]
        pieces.append(Piece(table, table.rows, table.dim, ids, ids, row["avg_n_unique"], np.zeros(DOUBLINGS)))
    looked_up, gradients, updated = traffic(Pieces.of(pieces))
    rate = H100_GBPS * 1e6  # bytes a millisecond
    forward = np.array([row["trc_forward_ms"] for row in rows])
    backward = np.array([row["trc_backward_ms"] for row in rows])
    shares = np.linalg.solve(np.stack([gradients, updated], axis=1) / rate, backward)
    words = {
        "looked_up_share": round(float((looked_up / rate / forward).mean()), 3),
        "gradient_share": round(float(1 / shares[0]), 3),
        "updated_share": round(float(1 / shares[1]), 3),
        "spread": SPREAD,
        "provenance": "fitted by benchmarks/sharding_tbe.py on one H100 80GB (3,350 GB/s), FBGEMM in HBM, fp32, dim 128"
        ", SGD and Adam: NVIDIA/recsys-examples 43465ae (BSD-3)",
    }
    CONSTANTS.write_text(json.dumps(words, indent=1) + "\n")
    print(words)


if __name__ == "__main__":
    main()
