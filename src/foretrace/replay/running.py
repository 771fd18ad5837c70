"""Running a benchmark in a process of its own, and reading what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from foretrace.graph import ForetraceError
from foretrace.replay.harness.parent import PARENT

REFUSED = 2
"""How ``run.py`` ends where it did not begin, and said why."""


@dataclass(frozen=True)
class Replay:
    """How a replay went, and what the original was; times in milliseconds, None where nobody knows."""

    device: str
    paced: bool
    iterations: int
    step_ms: float | None
    low_ms: float | None
    high_ms: float | None
    step_ms_back_to_back: float | None
    kernel_ms: float | None
    launches: int | None
    peak_memory_bytes: int
    coverage: dict[str, float | None]
    """Share of the original's calls that were made, by number, by host time and by device time."""
    ops: dict[str, list[int]]
    """Of each op how often it was really called, and how often the original called it."""
    failures: list[dict[str, Any]]
    stand_ins: list[dict[str, Any]]
    translated: dict[str, int]
    """Operators that this kind of device does not have, done by others that do the same, and how often."""
    kernels: dict[str, Any] | None
    """Kernels beside the original's: matched, missing and extra, by name."""
    system: dict[str, Any] | None
    """Power, clock and counters of the GPU."""
    original: dict[str, Any]
    notes: list[str]
    world: int = 1
    ranks: list[dict[str, Any]] | None = None
    """Figures of each rank, of a job of several."""

    def to_dict(self) -> dict[str, Any]:
        """Its words, as documented in docs/replay.md."""
        return asdict(self)


@dataclass(frozen=True)
class How:
    """How a benchmark is run."""

    iterations: int | None = None
    device: str | None = None
    pace: bool = True
    slow_host: float = 1.0
    """How many times as long the original's host shall have taken."""
    counters: bool = False
    """Also count what the GPU does, with Nsight Compute."""
    delayed: bool = False
    """Let collectives take as long as in the original."""

    @property
    def options(self) -> list[str]:
        """The same as options of ``run.py``.

        >>> How(iterations=5, pace=False).options, How(slow_host=1.5).options
        (['--iterations', '5', '--no-pace'], ['--slow-host', '1.5'])
        """
        chosen = [] if self.iterations is None else ["--iterations", str(self.iterations)]
        chosen += [] if self.device is None else ["--device", self.device]
        chosen += [] if self.slow_host == 1.0 else ["--slow-host", str(self.slow_host)]
        chosen += ["--counters"] if self.counters else []
        chosen += ["--delayed"] if self.delayed else []
        return chosen if self.pace else [*chosen, "--no-pace"]


def is_benchmark(path: Path) -> bool:
    """Whether a path is a benchmark's folder: a program. What holds a recording is data, whatever lies beside it.

    >>> is_benchmark(Path("nowhere"))
    False
    """
    if any(path.glob("rank-*/ops.jsonl.gz")):
        return False
    return (path / "run.py").is_file() and any((path / name).is_file() for name in ("calls.json", "ranks.json"))


def run_benchmark(folder: Path, how: How | None = None) -> Replay:
    """Run the benchmark in a folder."""
    said = _output(folder, ["--json", *(how or How()).options])
    words = json.loads(said)
    return Replay(**{field.name: words[field.name] for field in fields(Replay) if field.name in words})


def _output(folder: Path, options: Sequence[str]) -> str:
    """What ``run.py`` prints with these options."""
    command = [sys.executable, str(folder / "run.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, PARENT: str(os.getpid())})
    if done.returncode == 0:
        return done.stdout
    last = _last_words(done.returncode, done.stderr)
    if done.returncode == REFUSED:
        raise ForetraceError(last)
    raise ForetraceError(
        f"the benchmark failed: {last}", f"Write it with foretrace benchmark, and see {folder.name}/step.py."
    )


def _last_words(code: int, complaints: str) -> str:
    """Why a run ended as it did.

    >>> _last_words(1, "a warning\\nrun.py: no room"), _last_words(-9, "a warning"), _last_words(3, "")
    ('no room', 'it was ended by SIGKILL', 'it ended with exit code 3')
    """
    if code < 0:  # it had no time to say anything itself
        return f"it was ended by {signal.Signals(-code).name}"
    lines = complaints.strip().splitlines()
    return lines[-1].removeprefix("run.py: ").removeprefix("error: ") if lines else f"it ended with exit code {code}"
