"""Measures what `benchmarks.claims.sharding.sharding_gloo` is held to: hybrid DLRM jobs on 4 and 8 processes, and their
machine.

    python -m benchmarks.truth.sharding_gloo_truth OUT --minutes 4

writes for each WORLD ``OUT/platform-WORLD``, the fabric between so many processes and their host, ``OUT/calls-WORLD``,
their lookups as each of so many measured them while all worked at once, and ``OUT/jobs-WORLD.jsonl``, a line a job: the
steps of each candidate plan, one of each by turns, and of each rank's phases the median. All ranks have one thread. The
time is shared by the jobs. What is there already is left out, so that it can be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.truth.gloo_commands import all_end_well, fabric, torchrun
from benchmarks.truth.sharding_gloo_jobs import PHASES, WORLDS, Job, Spec, jobs, owners

WARM, FEWEST, MOST = 2, 6, 60
"""Rounds that are not counted, and of those that are."""
ENDING = 5.0
"""Seconds in which the last round of a job ends, and its processes."""

MACHINES = 0.55
"""Of the time for a world, after its fabric: calls are measured for so long at most."""

Times = dict[str, list[list[float]]]


def agree(over: bool) -> bool:
    """Whether any rank says so."""
    said = torch.tensor([float(over)])
    dist.all_reduce(said)
    return bool(said.item())


def time_job(tables: list[Spec], rank: int, world: int, until: float) -> Times:
    """Milliseconds of each candidate's steps: the step, between barriers, and each of `PHASES` on this rank."""
    candidates = {plan: Job(tables, owner, rank, world) for plan, owner in owners(tables, world).items()}
    times: Times = {plan: [] for plan in candidates}
    for number in range(WARM + MOST):  # by turns, so that a noisy moment meets all of them
        if agree(number >= WARM + FEWEST and time.time() > until):
            break
        for plan, job in candidates.items():
            dist.barrier()
            begun = time.perf_counter()
            marks = job.step()
            dist.barrier()
            if number >= WARM:
                phases = [(last - first) * 1e3 for first, last in pairwise(marks)]
                times[plan].append([(time.perf_counter() - begun) * 1e3, *phases])
    return times


def told(name: str, everybody: list[Times]) -> dict[str, Any]:
    """A job's line: all steps as the first rank timed them, and the phases of all ranks."""
    first = everybody[0]
    return {
        "job": name,
        "steps": {plan: [round(step[0], 4) for step in steps] for plan, steps in first.items()},
        "phases": {
            plan: {
                phase: [round(statistics.median(step[place] for step in one[plan]), 4) for one in everybody]
                for place, phase in enumerate(PHASES, 1)
            }
            for plan in first
        },
    }


def run_rank(out: Path, until: float) -> None:
    """All jobs of so many ranks as torchrun started; the first one writes what was measured."""
    gc.disable()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    done = {json.loads(line)["job"] for line in out.open()} if out.exists() else set()
    dist.barrier()
    left = [(name, tables) for name, size, tables in jobs() if size == world and name not in done]
    for number, (name, tables) in enumerate(left):
        if agree(time.time() > until):
            break
        share = (until - time.time()) / (len(left) - number)
        everybody: list[Times] = [{}] * world
        dist.all_gather_object(everybody, time_job(tables, rank, world, time.time() + share))
        gc.collect()
        if rank == 0:
            with out.open("a") as file:
                file.write(json.dumps(told(name, everybody)) + "\n")
            medians = {plan: round(statistics.median(s[0] for s in steps), 1) for plan, steps in everybody[0].items()}
            print(name, f"{len(everybody[0]['in turn'])} rounds", medians, file=sys.stderr, flush=True)
    dist.destroy_process_group()


def machines(out: Path, world: int) -> list[list[str]]:
    """Calibrations of the calls, all at once; the first one's also of the host."""
    words = ["-m", "benchmarks.truth.sharding_gloo_machine", str(world)]
    places = [out / f"platform-{world}", *(out / f"calls-{world}" / str(number) for number in range(1, world))]
    return [[sys.executable, *words, str(number), str(place)] for number, place in enumerate(places)]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=4.0)
    options.add_argument("--worlds", type=int, nargs="*", default=list(WORLDS))
    options.add_argument("--until", type=float, help="as a rank: begin no job after this time")
    chosen = options.parse_args()
    if chosen.until:
        run_rank(chosen.out, chosen.until)
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    end, whole = time.time() + chosen.minutes * 60, True
    for number, world in enumerate(chosen.worlds):
        platform = chosen.out / f"platform-{world}"
        mine = time.time() + (end - time.time()) / (len(chosen.worlds) - number)
        if not (platform / "fabric.json").exists():
            whole &= all_end_well([fabric(platform, world)], end - time.time())
        if not (platform / "raw" / "exact.jsonl.gz").exists():
            whole &= all_end_well(machines(chosen.out, world), (mine - time.time()) * MACHINES)
        words = [str(chosen.out / f"jobs-{world}.jsonl"), "--until", str(mine - ENDING)]
        whole &= all_end_well(
            [torchrun(world, "-m", "benchmarks.truth.sharding_gloo_truth", *words)], end - time.time()
        )
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
