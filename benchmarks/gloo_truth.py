"""Measures what `benchmarks.gloo_accuracy` is held to: real jobs of 2, 4 and 8 processes, and their machine.

    python -m benchmarks.gloo_truth OUT --minutes 4

writes for each WORLD ``OUT/JOB-WORLD/recording`` and ``again.json``, and ``OUT/platform-WORLD``: the fabric between so
many processes; host, and the calls of each job's sketch, while so many work at once. What is there already is left out,
so that it can be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from foretrace.platform.folder import RAW
from foretrace.platform.host_measurements import HOST_FILE
from foretrace.platform.journal import exists

JOBS = ("dlrm", "ddp", "fsdp")
"""As in `benchmarks.gloo_jobs`, which brings torch and the examples."""
WORLDS = (2, 4, 8)
THREADS = 2
"""Of each rank: eight ranks then fill sixteen cores."""
FABRIC_MINUTES = 0.1


def environment() -> dict[str, str]:
    paths = ["src", ".", "examples", os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": ":".join(filter(None, paths))}


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
    options = ["calibrate", "fabric", "--minutes", str(FABRIC_MINUTES), "--out", str(platform)]
    return torchrun(world, "--no-python", sys.executable, "-m", "foretrace", *options)


def machines(platform: Path, world: int, unread: Path) -> list[list[str]]:
    """Calibrations of the host and of the jobs' calls, of which the first one's is read and the others are its load."""
    places = [platform, *(unread / str(number) for number in range(1, world))]
    return [[sys.executable, "-m", "benchmarks.gloo_machine", str(world), str(place)] for place in places]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=4.0)
    options.add_argument("--worlds", type=int, nargs="*", default=list(WORLDS))
    chosen = options.parse_args()
    end = time.monotonic() + chosen.minutes * 60
    whole = True
    for world in chosen.worlds:
        platform = chosen.out / f"platform-{world}"
        if not (platform / "fabric.json").exists():
            whole &= all_end_well([fabric(platform, world)], end - time.monotonic())
        left = [name for name in JOBS if not (chosen.out / f"{name}-{world}" / "again.json").exists()]
        if left:
            jobs = torchrun(world, "-m", "benchmarks.gloo_jobs", str(chosen.out), *left)
            whole &= all_end_well([jobs], end - time.monotonic())
        if not exists(platform / RAW / HOST_FILE):  # it is measured last
            with tempfile.TemporaryDirectory() as unread:
                whole &= all_end_well(machines(platform, world, Path(unread)), end - time.monotonic())
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
