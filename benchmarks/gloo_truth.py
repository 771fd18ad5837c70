"""Measures what `benchmarks.gloo_accuracy` is held to: real jobs of 2, 4 and 8 processes, and their machine.

    python -m benchmarks.gloo_truth OUT --minutes 4

writes for each WORLD ``OUT/JOB-WORLD/recording`` and ``again.json``, and ``OUT/platform-WORLD``: the fabric between so
many processes; host, and the calls of each job's sketch, while so many work at once. The time is shared by the worlds;
what one leaves is the next one's. What is there already is left out, so that it can be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from foretrace.platform.cases.recorded import EXACT
from foretrace.platform.folder import RAW
from foretrace.platform.journal import exists
from foretrace.platform.measurements import SUFFIX

JOBS = ("dlrm", "ddp", "fsdp")
"""As in `benchmarks.gloo_jobs`, which brings torch and the examples."""
WORLDS = (2, 4, 8)
THREADS = 1
"""Of each rank: with those of gloo, and what watches, eight ranks then fill sixteen cores, and none waits for one."""
STARTING = 12.0
"""Seconds that a process takes before it measures, and between what it measures."""


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


def all_end_well(commands: list[list[str]], seconds: float) -> bool:
    """Run commands at once, so long at most; whether all of them ended well. What is not done by then is ended."""
    began, whole = time.monotonic(), True
    running = [
        subprocess.Popen(one, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for one in commands
    ]
    for process in running:
        try:
            _, said = process.communicate(timeout=max(seconds - (time.monotonic() - began), 1.0))
        except subprocess.TimeoutExpired:
            process.terminate()
            said = process.communicate()[1] + f"not done in {seconds:.0f} s"
        if process.returncode:
            whole = False
            print(said.strip()[-1500:], flush=True)
    print(f"{len(commands)} x {' '.join(commands[0][1:])}: {time.monotonic() - began:.1f} s", flush=True)
    return whole


def torchrun(world: int, *command: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), *command]


def fabric(platform: Path, world: int) -> list[str]:
    return torchrun(world, "-m", "benchmarks.gloo_fabric", str(platform))


def machines(platform: Path, world: int, unread: Path, seconds: float) -> list[list[str]]:
    """Calibrations of the host and of the jobs' calls, of which the first one's is read and the others are its load."""
    places = [platform, *(unread / str(number) for number in range(1, world))]
    words = [sys.executable, "-m", "benchmarks.gloo_machine", str(world)]
    return [[*words, str(place), str(seconds - STARTING)] for place in places]


def measure(out: Path, world: int, until: float) -> bool:
    """The jobs of so many ranks, and their machine; whether all went well."""
    platform, whole = out / f"platform-{world}", True
    if not (platform / "fabric.json").exists():
        whole &= all_end_well([fabric(platform, world)], until - time.monotonic())
    left = [name for name in JOBS if not (out / f"{name}-{world}" / "again.json").exists()]
    if left:
        jobs = torchrun(world, "-m", "benchmarks.gloo_jobs", str(out), *left)
        whole &= all_end_well([jobs], until - time.monotonic())
    if not exists(platform / RAW / f"{EXACT}{SUFFIX}"):
        seconds = until - time.monotonic()
        with tempfile.TemporaryDirectory() as unread:
            whole &= all_end_well(machines(platform, world, Path(unread), seconds), seconds)
    return whole


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=4.0)
    options.add_argument("--worlds", type=int, nargs="*", default=list(WORLDS))
    chosen = options.parse_args()
    end, whole = time.monotonic() + chosen.minutes * 60, True
    for number, world in enumerate(chosen.worlds):
        now = time.monotonic()
        share = (end - now) / (len(chosen.worlds) - number)
        whole &= measure(chosen.out, world, now + share)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
