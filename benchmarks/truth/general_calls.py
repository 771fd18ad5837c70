"""Measures, within a few minutes on a GPU, calls of many kinds of models and host times of small steps.

    python -m benchmarks.truth.general_calls OUT --minutes 7.7

Models at random (`benchmarks.lib.model_kinds`) are sketched by many processes while `focused_calls` measures what has
families of its own; then their calls are measured, then grouped and dilated convolutions, calls that no family covers,
and last host times (`host_kinds`), alone. Each part is a process with a time of its own, and leaves what it has done:
``OUT/calls.tar``, ``OUT/recordings.tar``, the host's files, and ``OUT/log.txt``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import IO

MINUTES = 7.7
SHARES = {"while sketched": 0.15, "models": 0.42, "grouped": 0.08, "other": 0.04, "host": 0.28}
"""Of the time, by part; the rest is for starting."""
LATE_S = 25.0
"""Seconds after its time that a part is ended."""
FIRST = 10_000
"""Number of the first model; earlier numbers may have been measured before."""
EACH = 1_000
"""Numbers of a sketching process."""
SPARE = 4
"""Processors that are not sketching."""


def module(log: IO[str], name: str, *given: object, seconds: float | None = None) -> subprocess.Popen[str]:
    """Start one of the benchmarks' programs."""
    words = [sys.executable, "-m", f"benchmarks.truth.{name}", *map(str, given)]
    print(f"{time.strftime('%H:%M:%S')} {' '.join(words[2:])}", file=log, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} if seconds else None
    return subprocess.Popen(words, stdout=log, stderr=log, text=True, env=environment)


def finished(process: subprocess.Popen[str], seconds: float) -> None:
    """Wait for a program, and end it where it takes too long."""
    try:
        process.wait(max(0.1, seconds) + LATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def merged(parts: list[Path], into: Path) -> None:
    """Join the files of several folders by name: each is a row of gzip members."""
    for path in sorted(found for part in parts for found in part.rglob("*.gz")):
        place = into / path.relative_to(next(part for part in parts if part in path.parents))
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("ab") as file:
            file.write(path.read_bytes())


def packed(folder: Path, into: Path) -> None:
    """Keep a folder as it is now in one file."""
    if folder.exists():
        with tarfile.open(into.with_suffix(".part"), "w") as tar:
            tar.add(folder, folder.name)
        into.with_suffix(".part").replace(into)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=MINUTES)
    options.add_argument("--calls", type=Path, help="a folder of calls that were sketched before")
    options.add_argument("--work", type=Path, default=Path("/tmp/general_calls"))
    chosen = options.parse_args()
    out, work, seconds = chosen.out, chosen.work, 60 * chosen.minutes
    end = time.monotonic() + seconds
    shutil.rmtree(work, ignore_errors=True)
    raw, calls = work / "calls", work / "sketched"
    raw.mkdir(parents=True)
    out.mkdir(parents=True, exist_ok=True)
    sketchers = max(1, len(os.sched_getaffinity(0)) - SPARE)
    parts = [work / f"part-{place}" for place in range(sketchers)]
    with (out / "log.txt").open("w") as log:

        def run(share: str, name: str, *given: object) -> None:
            part = max(1.0, min(SHARES[share] * seconds, end - time.monotonic()))
            finished(module(log, name, *given, "--minutes", round(part / 60, 3)), part)
            packed(raw, out / "calls.tar")

        first = SHARES["while sketched"] * seconds
        started = [
            module(log, "model_calls", "sketch", part, "--other", "--first", FIRST + place * EACH, "--last",
                   FIRST + (place + 1) * EACH, "--seconds", round(first - 5, 1), seconds=first)
            for place, part in enumerate(parts)
        ]  # fmt: skip
        # Into another folder: each file's numbers are those of one kind of cases.
        run("while sketched", "focused_calls", raw / "drawn", "--only", "fourier", "linear_algebra", "grid_sampling",
            "resampling", "dense gradients", "places", "few")  # fmt: skip
        for process in started:
            finished(process, 0)
        merged([*parts, *([chosen.calls] if chosen.calls else [])], calls)
        run("models", "model_calls", "measure", calls, raw)
        run("grouped", "focused_calls", raw / "drawn", "--only", "groups", "turned", "sequences")
        until = min(end, time.monotonic() + SHARES["other"] * seconds)
        while (left := until - time.monotonic()) > 0:  # a call may end its process: the next one goes on after it
            finished(module(log, "model_calls", "measure", calls, raw, "--only", "other", "--minutes",
                            round(left / 60, 3)), left)  # fmt: skip
        packed(raw, out / "calls.tar")
        run("host", "host_kinds", work / "host")
        for path in (work / "host").glob("*.gz"):
            shutil.copy(path, out)
        packed(work / "host" / "recordings", out / "recordings.tar")
    return 0


if __name__ == "__main__":
    sys.exit(main())
