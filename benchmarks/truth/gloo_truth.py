"""Measures what `benchmarks.claims.accuracy.gloo_accuracy` is held to: real jobs of 2, 4 and 8 processes, and their
machine.

    python -m benchmarks.truth.gloo_truth OUT --minutes 6.5

writes for each WORLD ``OUT/JOB-WORLD/recording-NUMBER`` and ``timed.json``, and ``OUT/platform-WORLD``: the fabric
between so many processes; host, and the calls of each job's sketch, while so many work at once.

A machine that others use as well changes its speed within milliseconds and within minutes, so that what is measured at
one time can't be held against what is measured at another. All processes stay; they take turns, and rounds are made
until the time is up. In each round every job is timed, recorded, its sketch's calls are measured, and it is timed
again; so is Python around calls, and in the first of them the fabric. What is made of the turns was settled
before any was measured: see `benchmarks.claims.accuracy.gloo_accuracy`.

Each rank keeps to two processors, an eighth of the machine, as launchers for processors see to it
(``torch.backends.xeon.run_cpu``): of ranks that wander some may share a core by chance, with one another or with gloo's
threads, and take half as long again while that lasts. Who calibrates keeps to the same ones.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from benchmarks.truth.gloo_turns import Command, Crew, shares
from foretrace.platform.measurements.cases import EXACT
from foretrace.platform.measurements.host import HOST_FILE
from foretrace.platform.measurements.kernels import SUFFIX
from foretrace.platform.platform import RAW

JOBS = ("dlrm", "ddp", "fsdp")
"""As in `benchmarks.truth.gloo_jobs`, which brings torch and the examples."""
WORLDS = (2, 4, 8)
THREADS = 1
"""Of each rank; gloo has its own."""
START_SECONDS, TURN_SECONDS = 120.0, 90.0
"""Nothing takes so long, unless it hangs."""


def environment() -> dict[str, str]:
    """That of the ranks: no GPU is theirs, and what they send stays on this machine."""
    paths = ["src", ".", "examples", os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(THREADS),
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": ":".join(filter(None, paths)),
    }


def processors(rank: int) -> set[int]:
    """Those that a rank has to itself, the same ones in a job of any size."""
    found = shares(max(1, len(os.sched_getaffinity(0)) // WORLDS[-1]))
    return found[rank % len(found)]


def jobs(out: Path, world: int) -> Crew:
    """The ranks of the jobs, as torchrun would start them."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    sizes = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    words = [sys.executable, "-m", "benchmarks.truth.gloo_jobs", str(out)]
    ranks = [(rank, {**sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world)]
    each = [Command(words, special, processors(rank)) for rank, special in ranks]
    return Crew(each, environment(), out / f"jobs-{world}.log")


def places(out: Path, world: int, unread: Path) -> list[Path]:
    """Where each of the processes that calibrate at once writes to: the first one into the platform."""
    return [out / f"platform-{world}", *(unread / f"{world}-{number}" for number in range(1, world))]


def machine(out: Path, world: int, unread: Path) -> Crew:
    """As many processes that calibrate as the job has ranks."""
    words = [sys.executable, "-m", "benchmarks.truth.gloo_machine", str(world)]
    every = enumerate(places(out, world, unread))
    each = [Command([*words, str(place)], {}, processors(rank)) for rank, place in every]
    return Crew(each, environment(), out / f"machine-{world}.log")


def gather(platform: Path, *others: Path) -> None:
    """Put what all of them measured together: one core is faster than another, and none is like all."""
    for file in (f"{EXACT}{SUFFIX}", HOST_FILE):
        with (platform / RAW / file).open("ab") as whole:
            whole.writelines((other / RAW / file).read_bytes() for other in others if (other / RAW / file).exists())


def rounds(ranks: dict[int, Crew], machines: dict[int, Crew], end: float) -> None:
    """Let all take turns until the time is up, one round at least; the smallest jobs last, which need the least."""
    worlds = sorted(ranks, reverse=True)
    took = dict.fromkeys(worlds, 0.0)
    for number in count():
        for world in worlds:
            if not number:
                begin(ranks[world], machines[world])
            began = time.monotonic()
            if number and began + took[world] > end:
                print(f"{number} rounds, {worlds.index(world)} worlds more")
                return
            one_round(ranks[world], machines[world], number)
            took[world] = time.monotonic() - began


def begin(ranks: Crew, machines: Crew) -> None:
    """Measure the host, and make the jobs of a number of ranks."""
    machines.do("device", TURN_SECONDS)
    machines.do("host", TURN_SECONDS)
    ranks.do("make", TURN_SECONDS)


def one_round(ranks: Crew, machines: Crew, number: int) -> None:
    """All jobs of a number of ranks, and their machine."""
    for name in JOBS:
        ranks.do(f"time {name}", TURN_SECONDS)
        ranks.do(f"record {name} {number}", TURN_SECONDS)
        machines.do(f"calls {name}", TURN_SECONDS)
        ranks.do(f"time {name}", TURN_SECONDS)
    if number:
        machines.do("around", TURN_SECONDS)  # in the first round it came with the rest of the host
    else:
        ranks.do("fabric", TURN_SECONDS)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=6.5)
    options.add_argument("--worlds", type=int, nargs="*", default=list(WORLDS))
    chosen = options.parse_args()
    end = time.monotonic() + chosen.minutes * 60
    with tempfile.TemporaryDirectory() as unread:
        ranks = {world: jobs(chosen.out, world) for world in chosen.worlds}
        machines = {world: machine(chosen.out, world, Path(unread)) for world in chosen.worlds}
        crews = [*ranks.values(), *machines.values()]
        try:
            for crew in crews:
                crew.do("wait", START_SECONDS)
            for crew in crews:
                crew.settle()
            rounds(ranks, machines, end)
            return 0 if all(crew.works for crew in crews) else 1
        finally:
            for crew in crews:
                crew.end()
            for world in chosen.worlds:
                gather(*places(chosen.out, world, Path(unread)))


if __name__ == "__main__":
    sys.exit(main())
