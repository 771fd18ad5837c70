"""Claim: the bubble of a simulated pipeline is the closed form's, to 0.1 % of the step, where all stages are equal.

A model of equal blocks is cut into p stages by `foretrace.parallelize` and predicted on an H200 with links that take no
time, and no processors from the kernels beside them. Over m microbatches, 1F1B and GPipe stand still for (p - 1) / m
of what a stage has to do, interleaved schedules of v chunks a stage for (p - 1) / (v m). What a stage has to do is the
step of the same blocks on one rank.

    python -m benchmarks.claims.accuracy.pipelines
"""

from __future__ import annotations

import sys
from dataclasses import replace
from unittest.mock import patch

from benchmarks.lib.table import keep
from foretrace.cost_models.collectives.contention import Contention
from foretrace.graph import Graph, Job, Op, OpTable, Tensor
from foretrace.platform.fabric import Curve, Fabric
from foretrace.platform.platform import Platform
from foretrace.platform.registry import load_platform
from foretrace.prediction.predict import predict_on_platform
from foretrace.transforms.parallel.parallelize import parallelize

LIMIT = 1e-3
MOST_STAGES = 8
ALONE = Contention(1.0, 0.0, "made up", 1.0, "made up")
"""Nothing slows what runs beside it."""
SAMPLES, WIDTH = 1 << 19, 1024
"""Rows of a microbatch and their width: products long enough that launches do not show."""
CASES = [
    ("1f1b", 2, 4, 1), ("1f1b", 4, 8, 1), ("1f1b", 4, 32, 1), ("1f1b", 8, 16, 1), ("gpipe", 4, 8, 1),
    ("interleaved", 2, 4, 2), ("interleaved", 4, 8, 2), ("interleaved", 4, 16, 4), ("interleaved", 8, 16, 2),
]  # fmt: skip


def equal_blocks(blocks: int, samples: int, width: int = WIDTH) -> Graph:
    """A training step of so many blocks, each one product forward and two backward."""
    numbers = iter(range(1_000_000))

    def tensor(rows: int) -> Tensor:
        number = next(numbers)
        return Tensor((rows, width), "bfloat16", "cuda:0", (width, 1), id=number, storage=number)

    weights = [tensor(width) for _ in range(blocks)]
    seen = [tensor(samples)]
    ops = []
    for block, weight in enumerate(weights):
        seen.append(tensor(samples))
        ops.append(
            Op("aten::mm", (seen[-2], weight), outputs=(seen[-1],), phase="forward", module=f"net.blocks.{block}")
        )
    flowing = tensor(samples)  # there before the step: a loss would make the last stage longer than the others
    gradients = []
    for block in reversed(range(blocks)):
        back, turned, gradient = tensor(samples), tensor(width), tensor(width)
        across = Tensor(
            (width, samples), "bfloat16", "cuda:0", (1, width), id=next(numbers), storage=seen[block].storage
        )
        where = {"phase": "backward", "module": f"net.blocks.{block}"}
        turned = replace(weights[block], id=turned.id, stride=(1, width))
        ops += [
            Op("aten::t", (weights[block],), outputs=(turned,), **where),
            Op("aten::mm", (flowing, turned), outputs=(back,), **where),
            Op("aten::t", (seen[block],), outputs=(across,), **where),
            Op("aten::mm", (across, flowing), outputs=(gradient,), **where),
        ]
        flowing = back
        gradients.append((weights[block], gradient))
    ops += [Op("aten::add_", (w, g), {"alpha": -0.1}, (w,), "Tensor", "optimizer") for w, g in gradients]
    return Graph(OpTable.of(ops), source="equal blocks")


def without_cost() -> Platform:
    """An H200 whose links take no time."""
    curves = [Curve(kind, MOST_STAGES, 1, 1e-6, 1e12, 1.0, ((1.0, 1.0),), 0.0) for kind in ("send", "all_reduce")]
    return replace(load_platform("h200"), fabric=Fabric("free", tuple(curves), "made up"))


def span_ms(job: Job, on: Platform) -> float:
    """From the first kernel to the last: how long the host takes to launch the first one is no bubble."""
    with patch("foretrace.cost_models.gpu_contention", lambda: ALONE):
        return predict_on_platform(job, on).device_span_ms


def row(schedule: str, stages: int, microbatches: int, chunks: int, on: Platform) -> dict[str, object]:
    """A pipeline beside its closed form."""
    each = 2 * chunks
    samples = SAMPLES * microbatches
    many = parallelize(
        equal_blocks(each * stages, samples),
        pipeline=stages,
        microbatches=microbatches,
        schedule=schedule,
        chunks=chunks,
    )
    alone = span_ms(parallelize(equal_blocks(each, samples), microbatches=microbatches), on)
    took = span_ms(many, on)
    bubble, exact = took / alone - 1, (stages - 1) / (chunks * microbatches)
    off = abs(bubble - exact) / (1 + exact)
    return {
        "schedule": schedule, "stages": stages, "microbatches": microbatches, "chunks": chunks,
        "span_ms": round(took, 3), "bubble_%": round(100 * bubble, 4), "closed_form_%": round(100 * exact, 4),
        "off_%": round(100 * off, 4), "holds": off < LIMIT,
    }  # fmt: skip


def main() -> int:
    on = without_cost()
    rows = [row(*case, on) for case in CASES]
    keep("pipelines", rows)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
