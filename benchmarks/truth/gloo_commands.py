"""Commands that measure a machine of processors, all at once and so long at most."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.truth.gloo_truth import environment

FABRIC_MINUTES = "0.1"


def torchrun(world: int, *command: str) -> list[str]:
    """A command as so many ranks."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), *command]


def fabric(platform: Path, world: int) -> list[str]:
    """What measures exchanges between so many ranks into a platform."""
    words = ["calibrate", "fabric", "--out", str(platform), "--minutes", FABRIC_MINUTES]
    return torchrun(world, "-m", "foretrace", *words)


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
