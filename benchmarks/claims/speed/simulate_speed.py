"""Claim: a million tasks are simulated in under 0.1 s; 1,000 Monte-Carlo draws of a 10,000-task step take under 2 s.

The programs are steps as `foretrace predict` makes them: host tasks in a row, a kernel behind each launch, a sync now
and then, and a launch queue of 1,024. Compilation happens once per machine and is not counted; the median of several
runs is held against the claim.

    python -m benchmarks.claims.speed.simulate_speed
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.lib.table import keep
from foretrace.simulation.engine import simulate
from foretrace.simulation.task_graph import TaskGraph
from foretrace.simulation.uncertainty import Uncertainty, sample_ends

RUNS = 7
QUEUE = 1024
HOST, DEVICE = range(2)
PER_CALL = 5
"""T1, T2, launch, kernel, T3."""
CALLS_PER_SYNC = 500


def step(tasks: int) -> TaskGraph:
    """A step of so many tasks."""
    calls = tasks // PER_CALL
    first = np.arange(calls) * PER_CALL
    launch, kernel, last = first + 2, first + 3, first + 4
    syncs = np.arange(CALLS_PER_SYNC, calls, CALLS_PER_SYNC)
    edges = [
        (first, first + 1), (first + 1, launch), (launch, kernel), (launch, last), (last[:-1], first[1:]),
        (kernel[:-1], kernel[1:]), (kernel[:-QUEUE], launch[QUEUE:]), (kernel[syncs - 1], first[syncs]),
    ]  # fmt: skip
    lane = np.tile(np.array([HOST, HOST, HOST, DEVICE, HOST], np.int32), calls)
    duration = np.random.default_rng(0).exponential(np.where(lane == DEVICE, 20.0, 3.0))
    return TaskGraph.of(duration, lane, np.concatenate([np.stack(pair, axis=1) for pair in edges]))


def doubt(tasks: int) -> Uncertainty:
    """A spread for each call, and one factor that all share."""
    calls = tasks // PER_CALL
    call = (np.arange(tasks) // PER_CALL).astype(np.int32)
    return Uncertainty(call, np.full(calls, 0.2), np.full(calls, 0.3), np.zeros(calls, np.int32), np.full(calls, 0.1))


def seconds(run: Callable[[], object]) -> float:
    """The median of several runs; the first, which may compile, is not counted."""
    run()
    took = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return median(took)


def main() -> int:
    million, small = step(1_000_000), step(10_000)
    cases = {
        "simulate 1,000,000 tasks": (lambda: simulate(million), 0.1),
        "1,000 draws of 10,000 tasks": (lambda: sample_ends(small, doubt(len(small)), 1000), 2.0),
    }
    rows = []
    for what, (run, limit) in cases.items():
        took = seconds(run)
        rows.append({"what": what, "seconds": round(took, 4), "limit": limit, "holds": took < limit})
    keep("simulate_speed", rows)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
