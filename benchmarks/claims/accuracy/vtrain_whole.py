"""Claim: the runs that `vtrain` folds into one task a turn take as long as in a simulation of every call of every
stage, to 6 %, where the device is the slower side.

`vtrain` prices hundreds of runs in a minute because it simulates no single calls. Here some small runs are made whole:
Megatron's GPT with all its layers, by `foretrace.parallelize` on tensor, data and pipeline ranks, and predicted on the
A100. Nothing is fitted: each constant of `vtrain` is what the models say, and the optimizer's is read from the sketch.
What the fold leaves out: the start of the host, gradients added up over microbatches, DDP's copies in and out of
buckets (Megatron has its gradients in the buckets).

    python -m benchmarks.claims.accuracy.vtrain_whole
"""

from __future__ import annotations

import math
import sys

import numpy as np

from benchmarks.claims.accuracy.vtrain import START, Machine, Run, a100, sketched
from benchmarks.lib.megatron import step
from benchmarks.lib.table import keep
from foretrace.api import predict
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.transforms.parallel.parallelize import RankMesh, parallelize
from foretrace.transforms.weights import weights_of

LIMIT = 0.06
WIDTH, HEADS, LENGTH, SAMPLES = 2048, 16, 1024, 4
RUNS = [
    # tensor, data, pipeline, layers, microbatches
    (1, 1, 1, 2, 1),
    (2, 1, 1, 2, 2),
    (1, 2, 1, 4, 1),
    (1, 1, 2, 4, 4),
    (2, 2, 2, 4, 4),
    (2, 1, 4, 8, 8),
]


def whole_ms(run: Run) -> float:
    """The step, simulated call by call."""
    graph = step(run.layers, run.width, run.heads, run.length, run.samples * run.microbatches)
    ranks = run.ranks
    job = parallelize(
        graph, ranks.data, ranks.tensor, ranks.pipeline, microbatches=run.microbatches, bucket_mb=math.inf
    )
    return predict(job, on="a100").step_ms


def update_ns() -> float:
    """What the optimizer takes for each weight, as the models say."""
    graph = sketched(WIDTH, HEADS, LENGTH, SAMPLES)
    ops = list(graph.ops)
    rows = np.array([r for r, op in enumerate(ops) if op.phase == "optimizer" and not op.is_side_call], np.int32)
    us = float(price_kernels(graph, rows, a100()).typical.sum())
    return 1e3 * us / sum(g.tensor.numel for g in weights_of(ops).gradients)


def compared() -> list[dict[str, object]]:
    """A row for each run."""
    constants = START | {"host_us": 0.0, "sharp": 1.0, "update_ns": update_ns()}
    machine = Machine(tuple(constants.values()), again=False)
    rows: list[dict[str, object]] = []
    for tensor, data, pipeline, layers, parts in RUNS:
        batch = SAMPLES * parts * data
        run = Run("", batch, SAMPLES, WIDTH, HEADS, layers, LENGTH, RankMesh(tensor, data, pipeline), math.nan)
        folded, whole = machine.ms(run), whole_ms(run)
        off = folded / whole - 1
        rows.append({
            "tensor": tensor, "data": data, "pipeline": pipeline, "layers": layers, "microbatches": parts,
            "folded_ms": round(folded, 2), "whole_ms": round(whole, 2), "off_%": round(100 * off, 2),
            "limit_%": 100 * LIMIT, "holds": abs(off) <= LIMIT,
        })  # fmt: skip
    return rows


def main() -> int:
    rows = compared()
    keep("vtrain_whole", rows)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
