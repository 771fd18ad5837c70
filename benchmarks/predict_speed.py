"""Claim: a step of BERT's size is predicted in under 0.2 s, once Foretrace has started.

The step is one of BERT-base in bf16 as an H200 recorded it, some 2,000 calls; its kernels are modelled. The whole of
`ft.predict` is timed, range and critical path included, after one prediction that reads the models and loads what was
compiled. The median of several runs is held against the claim.

    python -m benchmarks.predict_speed
"""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path
from statistics import median

import foretrace as ft
from benchmarks.table import keep
from foretrace.graph import Graph, OpTable
from foretrace.graph.codec import from_lines

OPS = Path(__file__).parents[1] / "tests" / "data" / "h200" / "bert_bf16.ops.jsonl.gz"
RUNS = 9
LIMIT_S = 0.2


def main() -> int:
    graph = Graph(OpTable.of(from_lines(gzip.decompress(OPS.read_bytes()).splitlines(), OPS.name)), source=OPS.name)
    platform = ft.platform("h200")
    forecast = ft.predict(graph, platform)
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        ft.predict(graph, platform)
        took.append(time.perf_counter() - began)
    row = {"calls": len(graph.ops), "kernels": forecast.kernels, "seconds": round(median(took), 4), "limit": LIMIT_S}
    keep("predict_speed", [row | {"holds": row["seconds"] < LIMIT_S}])
    return int(row["seconds"] >= LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
