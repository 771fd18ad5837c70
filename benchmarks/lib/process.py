"""A command in a fresh process: how long it takes, and how much memory it and its children hold at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

FORETRACE = str(Path(sys.executable).with_name("foretrace"))
POLL_S = 0.01


def shared(folder: str) -> Path:
    """A folder of published measurements, which lie beside the repository; ends the benchmark where it is absent."""
    found = Path(__file__).resolve().parents[2].parent / "shared" / folder
    if not found.is_dir():
        print(f"nothing done: {found} is absent, and with it the published traces that this benchmark reads")
        sys.exit(0)
    return found


def use_two_cores() -> None:
    """Hold this process, and so all that it starts, on two cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])


def seconds(command: Sequence[str]) -> float:
    """Wall time of the whole process, from its start to its end."""
    began = time.perf_counter()
    output(command)
    return time.perf_counter() - began


def output(command: Sequence[str]) -> str:
    """What the command prints."""
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def medians(commands: Mapping[str, Sequence[str]], runs: int) -> dict[str, float]:
    """Median seconds of each command, all of them run in turns: what slows the machine for a while slows all alike."""
    for command in commands.values():
        output(command)  # once, so that all is compiled and in the disk's cache
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            took[name].append(seconds(command))
    return {name: median(times) for name, times in took.items()}


def peak_mb(command: Sequence[str]) -> float:
    """Most megabytes that a process and its children held at once; what they share is counted once.

    The memory is looked at every few milliseconds, which slows the process: this is no run to take a time of.
    """
    process = subprocess.Popen(command, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(_proportional_kb(pid) for pid in _family(process.pid)))
        time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"{command[0]} failed")
    return peak / 1e3


def _family(pid: int) -> Iterator[int]:
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listed.read_text().split()
        except OSError:  # it has just ended
            continue
        for child in children:
            yield from _family(int(child))


def _proportional_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _environment() -> dict[str, str]:
    """Our own, but for what forbids to keep compiled files: a package that is installed has them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
