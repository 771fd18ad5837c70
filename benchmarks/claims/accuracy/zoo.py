"""Claim: steps of kinds that nothing was made for are sketched as they run and predicted: the calls of a sketch are the
recording's in 95 % of the steps (same PyTorch); device time from the sketch within 2.5 % (geometric mean), 4 % (mean),
10 % (90th percentile), 25 % (at worst); step time within 5 % and 8 %; the measured median lies in the range in 78 to
92 % of the steps; and calls that a model was called to know, but are off by over 30 %, take under 2 % of device time.

The steps are those of `benchmarks.lib.zoo`; half of them (*blind*) are scored without having been looked at. ``calls``
is the share of the recording's calls that the sketch has in the same place with the same shapes and dtypes; ``device``
the error of the device time from the sketch, ``recorded`` from the recording's own calls; ``far off`` the share of
device time in modelled calls that are off by over 30 %; ``not modelled`` what is extrapolated or by roofline.

    python -m benchmarks.claims.accuracy.zoo FOLDER [--blind]          (what single_truth and sketched wrote, --zoo)
"""

from __future__ import annotations

import sys
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.accuracy.accuracy_single import geomean
from benchmarks.claims.accuracy.sketch_agreement import calls_of
from benchmarks.lib.single_folder import Truth
from benchmarks.lib.table import H200, keep
from benchmarks.lib.zoo import BLIND
from foretrace import load
from foretrace.analysis.compare import check_prediction
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.roofline import MODEL
from foretrace.graph import Graph
from foretrace.platform.platform import Platform
from foretrace.prediction.predict import predict_on_platform

MEASURED_ON = H200
FAR_OFF = 0.3
SAME_STEPS, GEOMEAN, MEAN, P90, WORST = 0.95, 0.025, 0.04, 0.10, 0.25
STEP_GEOMEAN, STEP_MEAN, INSIDE, FAR_OFF_SHARE = 0.05, 0.08, (0.78, 0.92), 0.02


def same_calls(recorded: Graph, sketched: Graph) -> float:
    """The share of calls that both have, in order."""
    theirs, ours = calls_of(recorded), calls_of(sketched)
    if theirs == ours:
        return 1.0
    matched = SequenceMatcher(None, theirs, ours, autojunk=False).get_matching_blocks()
    return sum(block.size for block in matched) / max(len(theirs), len(ours))


def by_call(calls: Graph, platform: Platform) -> list[tuple[str, float, float, bool]]:
    """Each call that launched kernels: its name, measured and predicted microseconds, and whether a model knows it."""
    costs = price_kernels(calls, np.arange(len(calls.ops), dtype=np.int32), platform)
    kernels = calls.kernels
    owned = kernels.op >= 0
    measured = np.bincount(kernels.op[owned], (kernels.end - kernels.start)[owned], len(calls.ops))
    predicted = np.bincount(costs.op, costs.typical, len(calls.ops))
    modelled = np.ones(len(calls.ops), bool)
    modelled[costs.op[costs.source != MODEL]] = False
    rows = np.flatnonzero(measured + predicted).tolist()
    names = calls.ops.names
    return [(names[calls.ops.name[row]], measured[row], predicted[row], bool(modelled[row])) for row in rows]


def far_off(calls: list[tuple[str, float, float, bool]]) -> float:
    """The share of device time in calls that a model was called to know, and that are far off."""
    off = sum(us for _, us, found, modelled in calls if modelled and us and abs(found / us - 1) > FAR_OFF)
    return off / max(1e-9, sum(us for _, us, _, _ in calls))


def scored(step: str, truth: Truth) -> dict[str, Any]:
    """A step, measured and predicted."""
    job = truth.recording(step)
    calls = dispatched_calls(job.graphs[0]).calls
    recorded = predict_on_platform(job, truth.platform, kernels="model")
    row = {"step": step, "blind": step in BLIND}
    own = check_prediction(recorded, job)
    row |= {"measured ms": own.step_ms[1], "device ms": own.device_active_ms[1] if own.device_active_ms else None}
    row |= {"recorded": _off(own.device_active_ms), "step recorded": recorded.step_ms / own.step_ms[1] - 1}
    row |= {"far off": far_off(by_call(calls, truth.platform)), "not modelled": 1 - recorded.coverage["model"]}
    try:
        sketch = load(truth.folder / "sketches" / step)
    except Exception as error:  # a step that could not be sketched counts as one that is not the same
        return {**row, "calls": 0.0, "note": str(error)[:60]}
    sketched = predict_on_platform(sketch, truth.platform)
    found = check_prediction(sketched, job)
    return {
        **row,
        "calls": same_calls(job.graphs[0], sketch.graphs[0]),
        "device": _off(found.device_active_ms),
        "step": step,
        "sketched": sketched.step_ms / found.step_ms[1] - 1,
        "inside": found.inside,
    }


def _off(pair: tuple[float, float] | None) -> float | None:
    return pair[0] / pair[1] - 1 if pair and pair[1] else None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that the claim is about."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name in ("device", "recorded", "sketched", "step recorded"):
            if row.get(name) is not None:
                found[name].append(abs(row[name]))
    summed: dict[str, Any] = {"steps": len(rows), "same calls": np.mean([row["calls"] == 1 for row in rows])}
    for name, off in found.items():
        summed |= {f"{name} geomean": geomean(off), f"{name} mean": np.mean(off), f"{name} p90": np.quantile(off, 0.9)}
        summed[f"{name} worst"] = max(off)
    summed["inside"] = np.mean([bool(row.get("inside")) for row in rows if "inside" in row])
    summed["far off"] = np.mean([row["far off"] for row in rows])
    return {name: float(value) for name, value in summed.items()}


def verdict(found: dict[str, float]) -> str | None:
    """What of the claim does not hold, in words; None where all of it does."""
    limits = {
        "same calls": (SAME_STEPS, 1.0),
        "device geomean": (0.0, GEOMEAN),
        "device mean": (0.0, MEAN),
        "device p90": (0.0, P90),
        "device worst": (0.0, WORST),
        "sketched geomean": (0.0, STEP_GEOMEAN),
        "sketched mean": (0.0, STEP_MEAN),
        "inside": INSIDE,
        "far off": (0.0, FAR_OFF_SHARE),
    }
    missed = [name for name, (least, most) in limits.items() if not least <= found[name] <= most]
    said = (
        f"{name} {found[name]:.1%} ({least:.0%} to {most:.1%})" for name in missed for least, most in [limits[name]]
    )
    return f"Does not hold: {', '.join(said)}" if missed else None


def main() -> int:
    truth = Truth(Path(sys.argv[1]))
    rows = [scored(step, truth) for step in truth.steps]
    found = verdict(summary(rows))
    keep("zoo", rows, verdict=found)
    for name, some in (("all", rows), ("blind", [row for row in rows if row["blind"]])):
        summed = ", ".join(f"{what} {value:.1%}" for what, value in summary(some).items() if what != "steps")
        print(f"{name} {len(some)}: {summed}")
    return found is not None


if __name__ == "__main__":
    sys.exit(main())
