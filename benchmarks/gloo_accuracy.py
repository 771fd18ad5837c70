"""Claim: the step of real distributed jobs on CPUs is predicted within 8 % (geomean), and none is off by over 20 %.

A hybrid DLRM (all_to_all and all_reduce), an MLP under DDP and a GPT under FSDP2, on 2, 4 and 8 processes of one thread
and two processors each, that exchange through gloo on one machine of 16, which was calibrated in the same call. Each is
predicted three ways:

- on its own machine: hosts as recorded in the same job, collectives from the fabric;
- from 2 ranks: what a rank of the recorded job of two does, in a job of 4 or 8; collectives, and how processes slow
  each other down, from the fabric;
- sketched: the job has never run; its calls cost what they were measured to cost, in the order of the sketch, while as
  many processes measured at once. ``calls measured`` is the part of the time that was: the rest is the fabric's.

All are held against steps that were timed in turns with the calibration, which no forecast has seen. How far these are
from the steps that were timed within the recording is the noise: what two measurements of the same job differ by.

The kept table does not hold: one job that is kept on its own machine is off by 22 %, and its two measurements lie 20 %
apart. Processors of that machine are fast at one time and half as fast at another, for milliseconds or seconds, as
halves of cores are whose other halves others use. Geometric mean and worst of the three ways before anything was mended
on these rows: 5.2 and 22 %, 6.5 and 34 %, 7.1 and 19 %. Two mends followed: a rank does not wait for one exchange only
since the next one goes out after it; and a rank that stands for many is as fast as those that were recorded on average,
not as the first of them. On earlier rows, which these two were not worked out on, DLRM and MLP from 2 ranks come from
14 to 7 %.

    python -m benchmarks.gloo_accuracy OUT      (of `python -m benchmarks.gloo_truth OUT`)
"""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.accuracy_single import geomean
from benchmarks.gloo_jobs import JOBS
from benchmarks.gloo_truth import WORLDS
from benchmarks.table import XEON, keep
from foretrace import predict
from foretrace.fitting import fit
from foretrace.forecast.forecast import Forecast
from foretrace.graph import Job
from foretrace.loading import load
from foretrace.record.sketch import sketch

MEASURED_ON = XEON
GEOMEAN, MOST = 0.08, 0.20
RECORDED = WORLDS[0]
WAYS = ("own machine", f"from {RECORDED} ranks", "sketched")


def step_ms(forecast: Forecast) -> float:
    """A rank's step, the mean over the ranks: they start one after the other, and wait for each other once a step."""
    return mean(row["step_ms"] for row in forecast.ranks)


def timed_ms(job: Job) -> float:
    """The same as measured with nothing attached."""
    return mean(median(graph.plain.synced_ms) for graph in job.graphs)


def timed_again_ms(path: Path) -> float:
    """That of the steps that were timed later, in all rounds."""
    return median(chain.from_iterable(json.loads(path.read_text())))


def row(out: Path, name: str, world: int) -> dict[str, Any]:
    """One job of so many ranks."""
    fabric, folder = out / f"platform-{world}" / "fabric.json", out / f"{name}-{world}"
    job, again = load(folder / "recording"), timed_again_ms(folder / "again.json")
    first = timed_ms(job)
    found: dict[str, Any] = {"job": name, "ranks": world, "measured ms": again, "before": first}
    found["noise"] = abs(first / again - 1)
    said = {WAYS[0]: step_ms(predict(job, fabric=fabric))}
    if world != RECORDED:
        small = load(out / f"{name}-{RECORDED}" / "recording")
        said[WAYS[1]] = step_ms(predict(small, fabric=fabric, world=world))
    forecast = on_platform(out / f"platform-{world}", name, world)
    said[WAYS[2]] = step_ms(forecast)
    for way in WAYS:
        found[way] = said.get(way)
        found[f"{way} off"] = abs(said[way] / again - 1) if way in said else None
    found["calls measured"] = forecast.coverage["measured"]
    return found


def on_platform(platform: Path, name: str, world: int) -> Forecast:
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
    there = [(name, world) for name in JOBS for world in WORLDS if (out / f"{name}-{world}" / "again.json").exists()]
    for world in {world for _, world in there}:
        fit(out / f"platform-{world}")  # where it was measured nothing can be
    rows = [row(out, name, world) for name, world in there]
    total = summary(rows)
    keep("gloo_accuracy", [total, *rows])
    return int(not holds(rows, total))


if __name__ == "__main__":
    sys.exit(main())
