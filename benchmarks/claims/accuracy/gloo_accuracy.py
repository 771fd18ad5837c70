"""Claim: the step of real distributed jobs on CPUs is predicted within 8 % (geomean), and none is off by over 20 %.

A hybrid DLRM (all_to_all and all_reduce), an MLP under DDP and a GPT under FSDP2, on 2, 4 and 8 processes of one thread
and two processors each, that exchange through gloo on one machine of 16, which was calibrated in the same call. Each is
predicted three ways:

- on its own machine: hosts as recorded in the same job, collectives from the fabric;
- from 2 ranks: what a rank of the recorded job of two does, in a job of 4 or 8; collectives, and how processes slow
  each other down, from the fabric;
- sketched: the job has never run; its calls cost what they were measured to cost, in the order of the sketch, while as
  many processes measured at once. ``calls measured`` is the part of the time that was: the rest is the fabric's.

What is made of the measurements was settled before they were taken:

- measured is the median over all steps that were timed with nothing attached, in all turns of all rounds; no forecast
  sees any of them;
- a job is recorded once a round, and a forecast is the median of those from each of its recordings: who records once
  may meet a fast or a slow moment of the machine;
- the noise is what the first half of the timed turns differs from the second half by.

The kept table was made once, with models that had not seen its rows. Before it, with one recording of each job, the
three ways were off by 5.2 and at worst 22 %, 6.5 and 34 %, 7.1 and 19 %; then, with all this settled but of 2 and 8
ranks alone, by 3.9 and 13 %, 3.1 and 11 %, 10 and 27 %. What was mended on those rows since is what lies between calls
on processors, and how often shards are planned anew.

    python -m benchmarks.claims.accuracy.gloo_accuracy OUT      (of `python -m benchmarks.truth.gloo_truth OUT`)
"""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.claims.accuracy.accuracy_single import geomean
from benchmarks.lib.table import XEON, keep
from benchmarks.truth.gloo_jobs import JOBS
from benchmarks.truth.gloo_truth import WORLDS
from foretrace import predict
from foretrace.analysis.report import StepReport
from foretrace.api import load
from foretrace.calibration.fitting import fit
from foretrace.graph import Job
from foretrace.record.sketch.sketch import sketch

MEASURED_ON = XEON
GEOMEAN, MOST = 0.08, 0.20
RECORDED = WORLDS[0]
TIMED = "timed.json"
WAYS = ("own machine", f"from {RECORDED} ranks", "sketched")


def step_ms(forecast: StepReport) -> float:
    """A rank's step, the mean over the ranks: they start one after the other, and wait for each other once a step."""
    return mean(row.step_ms for row in forecast.ranks)


def recordings(out: Path, name: str, world: int) -> list[Job]:
    """A job's recordings, one of each round."""
    return [load(folder) for folder in sorted((out / f"{name}-{world}").glob("recording-*"))]


def row(out: Path, name: str, world: int) -> dict[str, Any]:
    """One job of so many ranks."""
    fabric = out / f"platform-{world}" / "fabric.json"
    turns = json.loads((out / f"{name}-{world}" / TIMED).read_text())
    half = len(turns) // 2
    measured, before, after = (median(chain.from_iterable(some)) for some in (turns, turns[:half], turns[half:]))
    found: dict[str, Any] = {"job": name, "ranks": world, "measured ms": measured, "noise": abs(before / after - 1)}
    own = [step_ms(predict(job, fabric=fabric)) for job in recordings(out, name, world)]
    said = {WAYS[0]: median(own)}
    if world != RECORDED:
        small = recordings(out, name, RECORDED)
        said[WAYS[1]] = median(step_ms(predict(job, fabric=fabric, world=world)) for job in small)
    forecast = on_platform(out / f"platform-{world}", name, world)
    said[WAYS[2]] = step_ms(forecast)
    for way in WAYS:
        found[way] = said.get(way)
        found[f"{way} off"] = abs(said[way] / measured - 1) if way in said else None
    found["calls measured"] = forecast.coverage["measured"]
    return found


def on_platform(platform: Path, name: str, world: int) -> StepReport:
    """The sketch of a job on the calibrated machine."""
    return predict(sketch(JOBS[name], world=world), on=platform, world=world)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of what all jobs are off by."""
    columns = ["noise", *(f"{way} off" for way in WAYS)]
    each = {column: [one[column] for one in rows if one[column] is not None] for column in columns}
    means = {column: geomean(off) for column, off in each.items() if off}
    return {**dict.fromkeys(rows[0]), "job": "geomean", **means}


def holds(rows: list[dict[str, Any]], total: dict[str, Any]) -> bool:
    """Whether the claim does, for each way."""
    worst = [one[f"{way} off"] or 0.0 for one in rows for way in WAYS]
    return max(worst) <= MOST and all((total[f"{way} off"] or 0.0) <= GEOMEAN for way in WAYS)


def main() -> int:
    out = Path(sys.argv[1])
    there = [(name, world) for name in JOBS for world in WORLDS if (out / f"{name}-{world}" / TIMED).exists()]
    for world in {world for _, world in there}:
        fit(out / f"platform-{world}")  # where it was measured nothing can be
    rows = [row(out, name, world) for name, world in there]
    total = summary(rows)
    keep("gloo_accuracy", [total, *rows])
    return int(not holds(rows, total))


if __name__ == "__main__":
    sys.exit(main())
