"""Measures what `benchmarks.sharding_gloo` is held to: hybrid DLRM jobs on 4 and 8 processes, and their machine.

    python -m benchmarks.sharding_gloo_truth OUT --minutes 4

writes for each WORLD ``OUT/platform-WORLD``, the fabric between so many processes and their lookups while so many work
at once, and ``OUT/jobs-WORLD.jsonl``, a line a job: the median step of each candidate plan, and of each rank's phases.
What is there already is left out, so that it can be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.gloo_truth import all_end_well, fabric, torchrun
from benchmarks.sharding_gloo_jobs import PHASES, WORLDS, Job, Spec, jobs, owners
from foretrace.platform.folder import RAW

STEPS, WARM = 9, 2
LOOKUPS_MINUTES = 0.5
STARTING = 15.0
"""Seconds that torchrun and a calibration take before they measure."""


def time_job(tables: list[Spec], rank: int, world: int) -> dict[str, list[list[float]]]:
    """Milliseconds of each candidate's steps: the step, between barriers, and each of `PHASES` on this rank."""
    candidates = {plan: Job(tables, owner, rank, world) for plan, owner in owners(tables, world).items()}
    times: dict[str, list[list[float]]] = {plan: [] for plan in candidates}
    for number in range(WARM + STEPS):  # by turns, so that a noisy moment meets all of them
        for plan, job in candidates.items():
            dist.barrier()
            begun = time.perf_counter()
            marks = job.step()
            dist.barrier()
            if number >= WARM:
                phases = [(last - first) * 1e3 for first, last in pairwise(marks)]
                times[plan].append([(time.perf_counter() - begun) * 1e3, *phases])
    return times


def run_rank(out: Path, until: float) -> None:
    """All jobs of so many ranks as torchrun started; the first one writes what was measured."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    done = {json.loads(line)["job"] for line in out.open()} if out.exists() else set()
    dist.barrier()
    for name, size, tables in jobs():
        late = torch.tensor([float(time.time() > until)])
        dist.all_reduce(late)
        if size != world or name in done or late.item():
            continue
        mine = {plan: [statistics.median(column) for column in zip(*ms)]
                for plan, ms in time_job(tables, rank, world).items()}  # fmt: skip
        everybody: list[dict[str, list[float]]] = [{}] * world
        dist.all_gather_object(everybody, mine)
        if rank == 0:
            found = {
                "job": name,
                "ms": {plan: round(ms[0], 4) for plan, ms in mine.items()},
                "phases": {
                    plan: {phase: [round(one[plan][place], 4) for one in everybody]
                           for place, phase in enumerate(PHASES, 1)}
                    for plan in mine
                },
            }  # fmt: skip
            with out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(name, found["ms"], flush=True)
    dist.destroy_process_group()


def machines(platform: Path, world: int, unread: Path) -> list[list[str]]:
    """Calibrations of lookups, of which the first one's is read and the others are its load."""
    places = [platform, *(unread / str(number) for number in range(1, world))]
    words = ["calibrate", "device", "--family", "lookups", "--on", "cpu", "--minutes", str(LOOKUPS_MINUTES)]
    return [[sys.executable, "-m", "foretrace", *words, "--out", str(place)] for place in places]


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
        platform, left = chosen.out / f"platform-{world}", len(chosen.worlds) - number
        mine = time.time() + (end - time.time()) / left
        if not (platform / "fabric.json").exists():
            whole &= all_end_well([fabric(platform, world)], end - time.time())
        if not (platform / RAW / "lookups.jsonl.gz").exists():
            with tempfile.TemporaryDirectory() as unread:
                whole &= all_end_well(machines(platform, world, Path(unread)), 60 * LOOKUPS_MINUTES + 2 * STARTING)
        words = [str(chosen.out / f"jobs-{world}.jsonl"), "--until", str(mine - STARTING)]
        whole &= all_end_well([torchrun(world, "-m", "benchmarks.sharding_gloo_truth", *words)], end - time.time())
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
