"""Claim: the host time of real models' steps is predicted within 5 % (geometric mean) and 15 % (at worst).

The host was fitted on small training steps that share no model with these; nothing was fitted on these. Both were
measured in turns, in one process on one machine, by `benchmarks.truth.host_truth`. Steps are so small that the host
alone decides how long they take; ``noise`` is how far the median of so many repeats may be off by chance. Beside the
model stands the best guess from the number of calls alone, fitted on the same small steps.

    python -m benchmarks.claims.accuracy.host_time [FOLDER with host.jsonl.gz and host_truth.json.gz]
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from math import exp, isnan, log
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from benchmarks.lib.table import H200, keep
from foretrace.cost_models.host.fitting import fit_host
from foretrace.cost_models.host.pricing import price_host
from foretrace.graph import PHASES, Graph, Op, OpTable, Tensor
from foretrace.platform.host import Host
from foretrace.platform.measurements.host import HOST_FILE, HostRun, read_host_runs

MEASURED_ON = H200
TRUTH = "host_truth.json.gz"
GEOMEAN, WORST = 0.05, 0.15
SMALLEST = 1e-3
"""An error that is smaller by luck counts as this much."""


def graph_of(step: dict[str, list[Any]]) -> tuple[Graph, np.ndarray]:
    """The calls of a step as a graph, and the launches of each."""
    some = Tensor((1,), "float32")
    ops = [
        Op(name, ([some] * tensors,) if tensors else (), phase=PHASES[phase], entered=entered)
        for name, phase, entered, tensors in zip(*(step[key] for key in ("name", "phase", "entered", "tensors")))
    ]
    table = OpTable.of(ops)
    table.detail = ops.__getitem__  # as a forecast has it: without copies
    return Graph(table), np.array(step["launches"], np.int32)


def predicted_us(step: dict[str, list[Any]], host: Host) -> tuple[float, float]:
    """Host time of a step, and how long pricing it took, both in microseconds."""
    graph, launches = graph_of(step)
    rows = np.arange(len(launches), dtype=np.int32)
    began = time.perf_counter()
    costs = price_host(graph, rows, launches, host)
    taken = (time.perf_counter() - began) * 1e6
    pauses = np.maximum(launches - 1, 0)
    each = costs.before + costs.to_launch + costs.launch * launches + costs.between * pauses + costs.after
    return float(each.sum()), taken


def per_call_us(runs: list[HostRun]) -> float:
    """The usual time of a call in the small steps."""
    steps = [step for run in runs for step in run.steps.values()]
    return median(median(map(_sum, step.plain)) / len(step.calls) for step in steps)


def _sum(parts: list[float]) -> float:
    return sum(us for us in parts if not isnan(us))


def row_of(name: str, step: dict[str, list[Any]], host: Host, per_call: float) -> dict[str, Any]:
    turns = [median(turn) for turn in step["host_us"]]
    measured = median(us for turn in step["host_us"] for us in turn)
    guess, pricing = predicted_us(step, host)
    return {
        "step": name,
        "calls": len(step["name"]),
        "measured ms": measured / 1e3,
        "noise": 1.25 * stdev(turns) / len(turns) ** 0.5 / measured,
        "predicted ms": guess / 1e3,
        "error": guess / measured - 1,
        "by calls alone": per_call * len(step["name"]) / measured - 1,
        "pricing ms": pricing / 1e3,
    }


def geomean(rows: list[dict[str, Any]], key: str) -> float:
    return exp(fmean(log(max(abs(row[key]), SMALLEST)) for row in rows))


def main() -> int:
    here = Path(__file__).resolve().parents[3]
    if len(sys.argv) > 1:
        raw, truth = (Path(sys.argv[1]) / name for name in (HOST_FILE, TRUTH))
    else:
        raw, truth = here / "measurements" / "h200" / HOST_FILE, here / "benchmarks" / "data" / TRUTH
    measured = json.loads(gzip.decompress(truth.read_bytes()))
    runs = [run for run in read_host_runs(raw) if run.machine["made"] == measured["calibration"]]
    host, per_call = fit_host(runs, "h200"), per_call_us(runs)
    rows = [row_of(name, step, host, per_call) for name, step in measured["steps"].items()]
    middle = {key: geomean(rows, key) for key in ("error", "by calls alone")}
    worst = {key: max(abs(row[key]) for row in rows) for key in middle}
    keep("host_time", [*rows, {"step": "geometric mean", **middle}, {"step": "at worst", **worst}])
    print(f"measured on {measured['machine']}")
    return int(middle["error"] > GEOMEAN or worst["error"] > WORST)


if __name__ == "__main__":
    sys.exit(main())
