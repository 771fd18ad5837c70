"""Claim: a step of BERT's size is predicted in under 0.2 s, and 3,000 calls are priced in under 50 ms.

The step is one of BERT-base in bf16 as an H200 recorded it, some 2,000 calls; its kernels are modelled. The whole of
`ft.predict` is timed, range and critical path included. What of it is pricing, from calls to the kernels that they
launch, is timed alone on 3,000 calls: those of BERT, and the first of GPT-2. Both after runs that read the models and
load what was compiled, which a process does that prices more than a few steps (before that, pricing takes half as long
again); the median of several runs is held against the claim.

    python -m benchmarks.claims.speed.predict_speed
"""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import foretrace as ft
from benchmarks.lib.table import keep
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Graph, Op, OpTable
from foretrace.graph.codec import from_lines

RECORDED = Path(__file__).resolve().parents[3] / "tests" / "data" / "h200"
RUNS = 9
CALLS = 3000
PREDICT_S, PRICE_S = 0.2, 0.05


def main() -> int:
    platform = ft.load_platform("h200")
    bert = recorded("bert_bf16")
    step = Graph(OpTable.of(bert), source="bert_bf16")
    many = dispatched_calls(Graph(OpTable.of([*bert, *recorded("gpt2_bf16")][:CALLS]))).calls
    calls = np.arange(len(many.ops), dtype=np.int32)
    rows = [
        timed("prediction of a BERT step", PREDICT_S, len(bert), lambda: ft.predict(step, platform)),
        timed("pricing", PRICE_S, len(calls), lambda: price_kernels(many, calls, platform)),
    ]
    keep("predict_speed", rows)
    return int(not all(row["holds"] for row in rows))


def recorded(name: str) -> list[Op]:
    """The calls of a step that an H200 recorded."""
    path = RECORDED / f"{name}.ops.jsonl.gz"
    return from_lines(gzip.decompress(path.read_bytes()).splitlines(), path.name)


def timed(what: str, limit_s: float, calls: int, run: Callable[[], object]) -> dict[str, Any]:
    """How long something takes, at the median, once it has run as often before."""
    for _ in range(RUNS):
        run()
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    seconds = round(median(took), 4)
    return {"what": what, "calls": calls, "seconds": seconds, "limit": limit_s, "holds": seconds < limit_s}


if __name__ == "__main__":
    sys.exit(main())
