"""Claim: compiled steps are predicted without a GPU: the sketch has the recording's launches (kernel name and tensors)
for 95 % of the device time; device time from the sketch within 4 % (geometric mean) and 15 % (at worst); step time, its
host calibrated in the same call, within 6 % and 20 %; the speed-up by compiling within 6 % (geometric mean) and of the
right sign where it is outside of the noise; 97 % of device time by models; peak memory within 3 % and 10 %.

The steps are those of `benchmarks.lib.compiled_steps`; no model was fitted on any of them. ``same`` is the share of the
recording's device time in launches that the sketch has too (with CUDA graphs: of generated kernels, by name alone);
``speed-up`` the compiled step's time over the eager one's. Peak memory is compared where there is no CUDA graph.

    python -m benchmarks.claims.accuracy.compiled FOLDER       (what compiled_truth and sketched wrote, --compiled)
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.claims.accuracy.accuracy_single import geomean
from benchmarks.lib.compiled_steps import EAGER, GRAPHED
from benchmarks.lib.single_folder import Truth
from benchmarks.lib.table import H200, keep
from foretrace import load
from foretrace.analysis.compare import check_prediction
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.graph import Graph, Op
from foretrace.graph.op import GRAPH_LAUNCH
from foretrace.prediction.predict import predict_on_platform

MEASURED_ON = H200
SAME, KNOWN = 0.95, 0.97
LIMITS = {"device": (0.04, 0.15), "step": (0.06, 0.20), "memory": (0.03, 0.10)}
SPEED_UP = 0.06
NUMBER = re.compile(r"_\d+$")


def launch(op: Op) -> tuple[Any, ...]:
    """What tells a launch from others: the kernel's name without its number, and its tensors."""
    name = op.name if op.name.startswith("aten::") else NUMBER.sub("", op.name)
    return name, *((tensor.shape, tensor.dtype) for tensor in op.tensors)


def same_launches(recorded: Graph, sketched: Graph) -> float:
    """The share of the recording's device time in launches that the sketch has too.

    Of kernels in a CUDA graph only the names are known: there it is the share of generated kernels' time.
    """
    calls = dispatched_calls(recorded).calls
    kernels = calls.kernels
    times = kernels.end - kernels.start
    launches = [op for op in sketched.ops if not op.is_side_call]
    if any(op.name == GRAPH_LAUNCH for op in sketched.ops):
        there = Counter(NUMBER.sub("", op.name) for op in launches)
        names = [NUMBER.sub("", kernels.names[code]) for code in kernels.name.tolist()]
        rows = [(name, us) for name, us in zip(names, times.tolist()) if name.startswith("triton_")]
        return _shared(rows, there)
    owned = kernels.op >= 0
    spent = np.bincount(kernels.op[owned], times[owned], len(calls.ops))
    rows = [(launch(calls.ops[row]), float(spent[row])) for row in np.flatnonzero(spent).tolist()]
    return _shared(rows, Counter(map(launch, launches)))


def _shared(rows: list[tuple[Any, float]], there: Counter[Any]) -> float:
    found = 0.0
    for key, us in rows:
        if there[key]:
            there[key] -= 1
            found += us
    return found / max(1e-9, sum(us for _, us in rows))


def scored(name: str, truth: Truth) -> dict[str, Any]:
    """A step in one mode, measured and predicted from its sketch."""
    job, sketch = truth.recording(name), load(truth.folder / "sketches" / name)
    predicted = predict_on_platform(sketch, truth.platform)
    found = check_prediction(predicted, job)
    plain = job.graphs[0].unprofiled
    row = {"step": name, "measured ms": median(plain.synced_ms), "predicted ms": predicted.step_ms}
    row |= {"same": same_launches(job.graphs[0], sketch.graphs[0]), "known": predicted.coverage["model"]}
    row |= {"device": _off(found.device_active_ms), "step off": predicted.step_ms / row["measured ms"] - 1}
    row |= {"inside": found.inside, "seconds": truth.beside[name].get("seconds")}
    graphed = name.endswith(GRAPHED)  # what a CUDA graph's pool holds does not count as allocated
    if plain.peak_memory_bytes and predicted.peak_memory_bytes and not graphed:
        row["memory"] = predicted.peak_memory_bytes / plain.peak_memory_bytes - 1
    return row


def _off(pair: tuple[float, float] | None) -> float | None:
    return pair[0] / pair[1] - 1 if pair and pair[1] else None


def with_speed_ups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each compiled step beside its eager one."""
    eager = {row["step"].rpartition(".")[0]: row for row in rows if row["step"].endswith(f".{EAGER}")}
    found = []
    for row in rows:
        base = eager.get(row["step"].rpartition(".")[0])
        if base is row or base is None:
            continue
        ratio = {kind: row[f"{kind} ms"] / base[f"{kind} ms"] for kind in ("measured", "predicted")}
        found.append({**row, "speed-up": ratio["measured"], "speed-up off": ratio["predicted"] / ratio["measured"] - 1})
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures that the claim is about."""
    found = {"same": min(row["same"] for row in rows), "known": min(row["known"] for row in rows)}
    for name, column in (
        ("device", "device"),
        ("step", "step off"),
        ("memory", "memory"),
        ("speed-up", "speed-up off"),
    ):
        off = [abs(row[column]) for row in rows if row.get(column) is not None]
        found |= {f"{name} geomean": geomean(off), f"{name} worst": max(off)}
    return found


def verdict(found: dict[str, float]) -> str | None:
    """What of the claim does not hold, in words; None where all of it does."""
    missed = [f"{name} {found[name]:.1%}" for name, least in (("same", SAME), ("known", KNOWN)) if found[name] < least]
    for name, limits in LIMITS.items():
        for kind, limit in zip(("geomean", "worst"), limits):
            if found[f"{name} {kind}"] > limit:
                missed.append(f"{name} {kind} {found[f'{name} {kind}']:.1%} ({limit:.0%})")
    if found["speed-up geomean"] > SPEED_UP:
        missed.append(f"speed-up geomean {found['speed-up geomean']:.1%} ({SPEED_UP:.0%})")
    return f"Does not hold: {', '.join(missed)}" if missed else None


def main() -> int:
    truth = Truth(Path(sys.argv[1]))
    every = [scored(step, truth) for step in truth.steps]
    rows = with_speed_ups(every)
    found = summary(rows)
    said = verdict(found)
    print(", ".join(f"{name} {value:.1%}" for name, value in found.items()))
    keep("compiled", rows, verdict=said)
    return 0 if said is None else 1


if __name__ == "__main__":
    sys.exit(main())
