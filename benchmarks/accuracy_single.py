"""Claim: steps on one H200 are predicted from their calls alone: device active time within 3 % (geometric mean) and
10 % (at worst), the step within 5 % and 15 %, 2 % where the device is what a step waits for, peak memory within 3 % and
8 %; and the measured median lies inside the range for 80 % of the steps or more.

The steps were recorded by `benchmarks.single_truth`, in turns with the calibration of the host that is used here.
Nothing was fitted on any of them. Beside the forecast stand two guesses: the sum of the predicted kernel times, and
rooflines of all calls.

    python -m benchmarks.accuracy_single FOLDER        (what single_truth wrote)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import keep
from foretrace import load
from foretrace.costs.fallback import work_of
from foretrace.costs.host_fit import fit_host
from foretrace.forecast.check import check
from foretrace.forecast.flat import flat
from foretrace.forecast.predict import predict
from foretrace.platform.host_measurements import HOST_FILE, read_runs
from foretrace.platform.platform import Platform

DEVICE_BOUND = 0.85
"""Share of the step that the device works, from which on it is what a step waits for."""
LIMITS = {"active": (0.03, 0.10), "step": (0.05, 0.15), "memory": (0.03, 0.08)}
BOUND_GEOMEAN, INSIDE = 0.02, 0.8


def scored(path: Path, platform: Platform) -> dict[str, Any]:
    """A step, measured and predicted."""
    job = load(path)
    forecast = predict(job, platform, kernels="model")
    found = check(forecast, job)
    _, step = found.step_ms
    roofline = sum(work_of(op).us(platform.device) for op in flat(job.graphs[0]).calls.ops) / 1e3
    return {
        "step": path.name,
        "measured ms": step,
        "predicted ms": forecast.step_ms,
        "low": forecast.low_ms,
        "high": forecast.high_ms,
        "off": _off(found.step_ms),
        "back to back off": _off(found.step_ms_back_to_back),
        "device-bound": bool(found.device_active_ms and found.device_active_ms[1] > DEVICE_BOUND * step),
        "active off": _off(found.device_active_ms),
        "memory off": _off(found.peak_memory_bytes),
        "inside": bool(found.inside),
        "kernels alone": forecast.kernel_ms / step - 1,
        "roofline": roofline / step - 1,
    }


def _off(pair: tuple[float, float] | None) -> float | None:
    """How far the predicted is off from the measured."""
    return pair[0] / pair[1] - 1 if pair and pair[1] else None


def geomean(off: Sequence[float]) -> float:
    return float(np.exp(np.log(np.maximum(np.abs(off), 1e-3)).mean()))


def main() -> int:
    folder = Path(sys.argv[1])
    host = fit_host(read_runs(folder / HOST_FILE), "h200")
    platform = Platform.named("h200").having(host=host)
    rows = [scored(path, platform) for path in sorted((folder / "recordings").iterdir())]
    keep("accuracy_single", rows)
    columns = {"active": "active off", "step": "off", "memory": "memory off"}
    off = {what: [row[column] for row in rows if row[column] is not None] for what, column in columns.items()}
    bound = [row["off"] for row in rows if row["device-bound"]]
    inside = float(np.mean([row["inside"] for row in rows]))
    for what, found in off.items():
        print(f"{what}: {geomean(found):.1%} geomean, {max(map(abs, found)):.1%} worst, {len(found)} steps")
    print(f"device-bound: {geomean(bound):.1%} geomean, {len(bound)} steps; inside the range: {inside:.0%}")
    held = all(geomean(off[what]) <= mean and max(map(abs, off[what])) <= most for what, (mean, most) in LIMITS.items())
    return not (held and geomean(bound) <= BOUND_GEOMEAN and inside >= INSIDE)


if __name__ == "__main__":
    sys.exit(main())
