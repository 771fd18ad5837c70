"""Claim: what ``whatif --fuse launches`` makes of a host-bound step is predicted within 10 % (geometric mean) of that
step captured as a CUDA graph on an H200, from its sketch alone; and that it is faster, in all.

The cost of a launch and the gap between kernels were fitted on chains of kernels (`benchmarks/data/cudagraph.json`),
the steps are others: the examples' DLRM and ResNet. Shown beside it: what launch, kernels as measured and gaps add up
to; and the eager step, all host time, on a host that was faster that day than the one that is shipped.

    python -m benchmarks.claims.accuracy.cudagraph
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.lib.table import H200, keep

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

from torch import nn

import dlrm
import foretrace as ft
import resnet
from foretrace import transforms
from foretrace.graph import Graph
from foretrace.graph.op import GRAPH_LAUNCH
from foretrace.platform.device import CudaGraphCosts
from foretrace.transforms.step import EditedCall, assemble

MEASURED_ON = H200
MEASURED = Path(__file__).resolve().parents[2] / "data" / "cudagraph.json"
MOST = 0.10


def sketched(model: Any, dense: bool = False, shape: dict[str, Any] | None = None, **options: Any) -> Graph:
    """A step of an example as it was timed; ``dense`` tables have gradients of all their rows."""
    preset = options["preset"]

    def table(rows: int, dim: int) -> nn.EmbeddingBag:
        return nn.EmbeddingBag(rows, dim, mode="sum")

    def build() -> Callable[[], Any]:
        with patch.object(dlrm, "table", table if dense else dlrm.table):
            return model.make_step(device="cuda", **options)

    with patch.dict(model.PRESETS, {preset: replace(model.PRESETS[preset], **(shape or {}))}):
        return ft.sketch(build, device="cuda")


STEPS: dict[str, Callable[[], Graph]] = {
    "dlrm_sparse_b512": lambda: sketched(dlrm, shape={"pooling": 10}, preset="default", batch=512, max_rows=10_000),
    "dlrm_dense_b512": lambda: sketched(
        dlrm, dense=True, shape={"pooling": 10}, preset="default", batch=512, max_rows=10_000
    ),
    "dlrm_dense_tiny": lambda: sketched(dlrm, dense=True, preset="tiny"),
    "resnet_tiny": lambda: sketched(resnet, preset="tiny"),
}


def in_place(graph: Graph) -> Graph:
    """A captured step without the copies that bring it a new batch: when it was timed, there was only one."""
    ops = list(graph.ops)
    launch = next(row for row, op in enumerate(ops) if op.name == GRAPH_LAUNCH)
    return assemble(graph, [EditedCall(op, row) for row, op in enumerate(ops) if row >= launch])


def row(measured: dict[str, Any], step: Graph) -> dict[str, Any]:
    """One step: as measured, by its measured kernels, and predicted from its sketch alone."""
    eager, captured = (measured[kind]["whole_us"] / 1e3 for kind in ("eager", "graph"))
    before, after = (ft.predict(graph, on="h200").step_ms for graph in (step, in_place(transforms.cudagraph(step))))
    seen, costs = measured["graph"]["profiled"], CudaGraphCosts.shipped()
    added_up = (costs.launch(seen["kernels"]) + seen["kernel_us"] + costs.gap_us * seen["kernels"]) / 1e3
    return {
        "step": measured["name"],
        "kernels": seen["kernels"],
        "eager ms": eager,
        "predicted": before,
        "captured ms": captured,
        "predicted so": after,
        "times": eager / captured,
        "predicted times": before / after,
        "off": abs(after / captured - 1),
        "added up off": abs(added_up / captured - 1),
    }


def main() -> int:
    measured = {one["name"]: one for one in json.loads(MEASURED.read_text())["steps"] if "graph" in one}
    rows = [row(measured[name], make()) for name, make in STEPS.items()]
    words = ("off", "added up off")
    total = {word: exp(sum(log(1 + one[word]) for one in rows) / len(rows)) - 1 for word in words}
    keep("cudagraph", [*rows, {"step": f"all {len(rows)}", **total}])
    return 0 if total["off"] <= MOST and all(one["predicted times"] > 1 for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
