"""Claim: jobs are simulated while one waits.

8 ranks of 10,000 ops each take under 0.2 s; 1,024 ranks with different hosts and loads, of 10,000 ops each, under 10 s
and 8 GB; 16,384 identical ranks under 1 s. All of it from priced steps on: the programs of the ranks are built and put
together, collectives are matched and priced, and the whole is simulated. Compilation happens once per machine and is
not counted. Seconds are those of the one processor that all of it runs on, so that others on the machine do not matter;
the first run, which asks the system for memory, counts as the others do, and the slowest is held against the claim.

    python -m benchmarks.claims.speed.job_speed
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.lib.table import keep
from foretrace.analysis.collective_matching import match_collectives
from foretrace.cost_models.kernels.roofline import MODEL
from foretrace.graph import Collective, Graph, Job, Op, OpTable
from foretrace.graph.tables import COLLECTIVE, COMPUTE
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric
from foretrace.prediction.device_work import DeviceWork
from foretrace.prediction.job import price_transfers
from foretrace.prediction.priced_step import NO_SYNC, PricedStep, Waits
from foretrace.prediction.priced_tasks import priced_tasks
from foretrace.prediction.rank_models import with_arrivals
from foretrace.prediction.scaling import at_world
from foretrace.simulation.engine import simulate
from foretrace.simulation.merge import RankTasks, merge_ranks
from foretrace.simulation.task_graph import T1, T2, T3, T4, T5

RUNS = 5
MANY = 5
"""Small jobs before: the compiler's start is no part of what is claimed."""
CALLS = 10_000
BETWEEN = 100
"""Calls from one collective to the next."""
NBYTES = 1 << 24
FABRIC, DEVICE = "h100-nvswitch", "h200"


def step(seed: int) -> PricedStep:
    """A step of as many calls with a kernel each; every so many of them, an all_reduce on a stream of its own."""
    numbers = np.random.default_rng(seed)
    calls, talks = np.arange(CALLS, dtype=np.int32), np.zeros(CALLS, bool)
    talks[BETWEEN - 1 :: BETWEEN] = True
    asked = np.flatnonzero(talks).astype(np.int32)
    us = numbers.exponential(20.0, CALLS)
    work = DeviceWork(
        call=calls,
        launch=calls,
        stream=talks.astype(np.int32),
        kind=np.where(talks, COLLECTIVE, COMPUTE).astype(np.int8),
        name=["kernel"] * CALLS,
        low=us,
        typical=us,
        high=us,
        source=np.full(CALLS, MODEL, np.int8),
        collective=np.where(talks, np.cumsum(talks) - 1, -1).astype(np.int32),
    )
    return PricedStep(
        thread=np.zeros(CALLS, np.int32),
        concurrent=np.zeros(CALLS, bool),
        durations={kind: numbers.exponential(3.0, CALLS) for kind in (T1, T2, T3, T4, T5)},
        cold=np.zeros(CALLS),
        spread=np.zeros(CALLS),
        common=0.0,
        work=work,
        waits=Waits(
            np.full(CALLS, NO_SYNC, np.int8),
            np.concatenate([np.stack([asked - 1, asked], axis=1), np.stack([asked[:-1], asked[:-1] + 50], axis=1)]),
        ),
        stream=work.stream,
        captured=np.zeros(CALLS, bool),
    )


def graph(rank: int, world: int) -> Graph:
    """What matching asks for of a rank: its collectives."""
    ranks = tuple(range(world))
    collectives = [Collective("all_reduce", "0", NBYTES, -1, 0, ranks) for _ in range(CALLS // BETWEEN)]
    return Graph(OpTable.of([Op("c10d::allreduce_")]), rank=rank, world=world, collectives=collectives)


def part(one: PricedStep) -> RankTasks:
    """The tasks of a rank."""
    return with_arrivals(priced_tasks(one, Device.named(DEVICE)), np.flatnonzero(one.work.collective >= 0))


def simulated(parts: list[RankTasks], job: Job) -> float:
    """Put ranks together and simulate them."""
    matches, _ = match_collectives(job)
    us = price_transfers(matches, Fabric.named(FABRIC)).typical
    return simulate(merge_ranks(parts, [match.calls for match in matches], us).tasks).span


def different(steps: list[PricedStep]) -> Callable[[], float]:
    """Ranks of which each has a program of its own."""
    job = Job([graph(rank, len(steps)) for rank in range(len(steps))])
    return lambda: simulated([part(one) for one in steps], job)


def scaled(one: PricedStep, world: int) -> Callable[[], float]:
    """Ranks that make the same calls on hosts and with loads of their own."""
    numbers = np.random.default_rng(1)
    slower = 1 + 0.2 * numbers.random((world, 2))
    job = Job([graph(rank, world) for rank in range(world)])

    def run() -> float:
        alike = part(one)
        host = alike.tasks.on_host
        return simulated([alike.scaled(np.where(host, *factors)) for factors in slower], job)

    return run


def identical(one: PricedStep, world: int) -> Callable[[], float]:
    """Ranks that all do the same."""
    return lambda: simulated([part(one)], at_world(Job([graph(0, 8)]), world))


def timed(run: Callable[[], float], runs: int) -> dict[str, Any]:
    """Processor seconds of several runs, and what the last one took by the clock."""
    took = []
    for _ in range(runs):
        began, clock = time.process_time(), time.perf_counter()
        run()
        took.append(time.process_time() - began)
    clocked = time.perf_counter() - clock
    return {"slowest s": max(took), "median s": median(took), "first s": took[0], "by the clock": clocked}


def main() -> int:
    steps = [step(seed) for seed in range(8)]
    for _ in range(MANY):  # a process that simulates much has its simulation compiled
        different(steps[:2])()
    cases = (
        ("8 ranks x 10,000 ops", different(steps), RUNS, 0.2),
        ("16,384 identical ranks x 10,000 ops", identical(steps[0], 16_384), RUNS, 1.0),
        ("1,024 different ranks x 10,000 ops", scaled(steps[0], 1024), 3, 10.0),
    )
    rows = []
    for what, run, runs, limit in cases:
        row = {"what": what, **timed(run, runs), "limit": limit}
        row["peak GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append({**row, "holds": row["slowest s"] < limit and row["peak GB"] < 8})
    keep("job_speed", rows)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
