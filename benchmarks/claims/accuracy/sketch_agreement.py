"""Claim: a sketch is the step: sketched with the same PyTorch, its calls and their shapes are those of a recording, all
of them and in order, and its forecast is within 1 % of the recording's; sketched with a CPU build of another version,
its device time and its launches are within 3 % of what is predicted for the recording.

What a sketch can't know, how the ids of lookups are spread, is left out of the recordings here. Beside it, and not part
of the claim, stands how far the launches are off from those that were measured: that is the kernel models' doing.

    python -m benchmarks.claims.accuracy.sketch_agreement FOLDER        (what single_truth and sketched wrote, sketched
    twice:
                                                         into FOLDER/sketches and, by a CPU build, sketches_cpu)
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.lib.single_folder import Truth
from benchmarks.lib.table import keep
from foretrace import load
from foretrace.graph import Graph, Op
from foretrace.prediction.predict import predict_on_platform

FORECAST, ELSEWHERE = 0.01, 0.03


def signature(op: Op) -> tuple[Any, ...]:
    """What tells a call from others: its name, and the shapes and dtypes of its tensors."""
    return op.name, *((tensor.shape, tensor.dtype) for tensor in op.tensors)


def calls_of(graph: Graph) -> list[tuple[Any, ...]]:
    return [signature(op) for op in graph.ops if not op.is_side_call]


def agreement(step: str, truth: Truth) -> dict[str, Any]:
    """How far the two sketches of a step agree with its recording."""
    recorded = replace(truth.recording(step).graphs[0], indices=[])
    sketched = truth.sketch(step).graphs[0]
    elsewhere = load(truth.folder / "sketches_cpu" / step).graphs[0]
    theirs, ours = calls_of(recorded), calls_of(sketched)
    same = sum(a == b for a, b in zip(theirs, ours))
    there, here, far = (
        predict_on_platform(graph, truth.platform, kernels="model") for graph in (recorded, sketched, elsewhere)
    )
    return {
        "step": step,
        "calls": len(theirs),
        "the same": same / max(len(theirs), len(ours)),
        "forecast": here.step_ms / there.step_ms - 1,
        "CPU build: device time": far.kernel_ms / there.kernel_ms - 1,
        "CPU build: launches": far.kernels / there.kernels - 1,
        "launches measured": far.kernels / len(recorded.kernels) - 1,
    }


def main() -> int:
    truth = Truth(Path(sys.argv[1]))
    rows = [agreement(step, truth) for step in truth.steps]
    columns = [name for name in rows[0] if name not in ("step", "calls", "the same")]
    worst = {name: max(abs(row[name]) for row in rows) for name in columns}
    same = min(row["the same"] for row in rows)
    keep("sketch_agreement", [*rows, {"step": "at worst", "the same": same, **worst}])
    elsewhere = max(worst[name] for name in columns if name.startswith("CPU build"))
    return not (same == 1 and worst["forecast"] <= FORECAST and elsewhere <= ELSEWHERE)


if __name__ == "__main__":
    sys.exit(main())
