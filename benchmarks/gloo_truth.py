"""Measures what `benchmarks.gloo_accuracy` is held to: real jobs of 2, 4 and 8 processes, and their machine.

    python -m benchmarks.gloo_truth OUT --minutes 6.5

writes for each WORLD ``OUT/JOB-WORLD/recording`` and ``again.json``, and ``OUT/platform-WORLD``: the fabric between so
many processes; host, and the calls of each job's sketch, while so many work at once.

A machine that others use as well changes its speed within seconds, so that what is measured minutes apart can't be
compared. All processes stay; they take turns, and rounds over all jobs and all that is measured of the machine are made
until the time is up.
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

from benchmarks.gloo_turns import Crew
from foretrace.platform.cases.recorded import EXACT
from foretrace.platform.folder import RAW
from foretrace.platform.host_measurements import HOST_FILE
from foretrace.platform.measurements import SUFFIX

JOBS = ("dlrm", "ddp", "fsdp")
"""As in `benchmarks.gloo_jobs`, which brings torch and the examples."""
WORLDS = (2, 4, 8)
THREADS = 1
"""Of each rank: with those of gloo, and what watches, eight ranks then fill sixteen cores, and none waits for one."""
START_SECONDS, TURN_SECONDS = 120.0, 90.0
"""Nothing takes so long, unless it hangs."""
FABRIC_ROUNDS = 2


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


def jobs(out: Path, world: int) -> Crew:
    """The ranks of the jobs, as torchrun would start them."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = str(found.getsockname()[1])
    sizes = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    words = [sys.executable, "-m", "benchmarks.gloo_jobs", str(out)]
    each = [(words, {**sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world)]
    return Crew(each, environment(), out / f"jobs-{world}.log")


def places(out: Path, world: int, unread: Path) -> list[Path]:
    """Where each of the processes that calibrate at once writes to: the first one into the platform."""
    return [out / f"platform-{world}", *(unread / f"{world}-{number}" for number in range(1, world))]


def machine(out: Path, world: int, unread: Path) -> Crew:
    """As many processes that calibrate as the job has ranks."""
    words = [sys.executable, "-m", "benchmarks.gloo_machine", str(world)]
    each = [([*words, str(place)], {}) for place in places(out, world, unread)]
    return Crew(each, environment(), out / f"machine-{world}.log")


def gather(platform: Path, *others: Path) -> None:
    """Put what all of them measured together: one core is faster than another, and none is like all."""
    for file in (f"{EXACT}{SUFFIX}", HOST_FILE):
        with (platform / RAW / file).open("ab") as whole:
            whole.writelines((other / RAW / file).read_bytes() for other in others if (other / RAW / file).exists())


def begin(ranks: dict[int, Crew], machines: dict[int, Crew]) -> None:
    """Wait until all processes are there; then record the jobs."""
    for crew in (*ranks.values(), *machines.values()):
        crew.do("wait", START_SECONDS)
    for world, crew in ranks.items():
        machines[world].do("device", TURN_SECONDS)
        for name in JOBS:
            crew.do(f"record {name}", TURN_SECONDS)


def rounds(ranks: dict[int, Crew], machines: dict[int, Crew], end: float) -> None:
    """Let all take turns until the time is up, one round at least."""
    took = dict.fromkeys(ranks, 0.0)
    for number in count():
        for world in ranks:
            began = time.monotonic()
            if began + took[world] > end:
                print(f"{number} rounds, {list(ranks).index(world)} worlds more")
                return
            for name in JOBS:
                ranks[world].do(f"time {name}", TURN_SECONDS)
                machines[world].do(f"calls {name}", TURN_SECONDS)
            if number < FABRIC_ROUNDS:
                ranks[world].do("fabric", TURN_SECONDS)
            took[world] = time.monotonic() - began
            if not number:
                machines[world].do("host", TURN_SECONDS)


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
            begin(ranks, machines)
            rounds(ranks, machines, end)
            return 0 if all(crew.works for crew in crews) else 1
        finally:
            for crew in crews:
                crew.end()
            for world in chosen.worlds:
                gather(*places(chosen.out, world, Path(unread)))


if __name__ == "__main__":
    sys.exit(main())
