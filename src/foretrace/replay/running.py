"""Running a benchmark in a process of its own: options, result, and the checks before it starts."""

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
from foretrace.replay.generate.choices import Choices
from foretrace.replay.harness import PARENT_VARIABLE

DEVICES = ("cpu", "cuda", "meta")
REFUSED = 2
"""Exit code of ``run.py`` where a file or an option is wrong; it has printed why."""


@dataclass(frozen=True)
class Replay:
    """Result of a replay, compared with the original; times in milliseconds, None where unknown."""

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
    """Share of the original's calls that were made, by number, host time and device time."""
    ops: dict[str, list[int]]
    """Of each op, how often the replay called it, and how often the original did."""
    failures: list[dict[str, Any]]
    stand_ins: list[dict[str, Any]]
    translated: dict[str, int]
    """Operators that this kind of device lacks and that others replaced, and how often."""
    kernels: dict[str, Any] | None
    """Kernels compared with the original's: matched, missing and extra, by name."""
    system: dict[str, Any] | None
    """Power, clock and counters of the GPU."""
    original: dict[str, Any]
    notes: list[str]
    world: int = 1
    ranks: list[dict[str, Any]] | None = None
    """Figures of each rank of a job of several."""

    def to_dict(self) -> dict[str, Any]:
        """Its fields, as documented in docs/replay.md."""
        return asdict(self)


@dataclass(frozen=True)
class How:
    """How a benchmark is run."""

    iterations: int | None = None
    device: str | None = None
    pace: bool = True
    slow_host: float = 1.0
    """Factor on the host time of the original."""
    counters: bool = False
    """Also read hardware counters of the GPU, with Nsight Compute."""
    delayed: bool = False
    """Delay collectives to their duration in the original."""
    eager: bool = False
    """Run compiled programs call by call, uncompiled."""

    @property
    def options(self) -> list[str]:
        """These settings as command-line options of ``run.py``.

        >>> How(iterations=5, pace=False).options, How(slow_host=1.5).options
        (['--iterations', '5', '--no-pace'], ['--slow-host', '1.5'])
        """
        chosen = [] if self.iterations is None else ["--iterations", str(self.iterations)]
        chosen += [] if self.device is None else ["--device", self.device]
        chosen += [] if self.slow_host == 1.0 else ["--slow-host", str(self.slow_host)]
        chosen += ["--counters"] if self.counters else []
        chosen += ["--delayed"] if self.delayed else []
        chosen += ["--eager"] if self.eager else []
        return chosen if self.pace else [*chosen, "--no-pace"]

    def check_device(self) -> None:
        """Refuse an unknown device."""
        if self.device not in (None, *DEVICES):
            raise ForetraceError(f"a replay can't run on {self.device!r}", f"It runs on {', '.join(DEVICES)}.")

    def check_delay(self, world: int, source: str) -> None:
        """Refuse delays where there are no collectives."""
        if self.delayed and world == 1:
            raise ForetraceError(f"{source} is of one rank: it has no collectives to delay", "Leave out --delayed.")


def is_benchmark(path: Path) -> bool:
    """Whether a path is the folder of a benchmark. One that also holds a recording is not: that is data, not a program.

    >>> is_benchmark(Path("nowhere"))
    False
    """
    if any(path.glob("rank-*/ops.jsonl.gz")):
        return False
    return (path / "run.py").is_file() and any((path / name).is_file() for name in ("calls.json", "ranks.json"))


def run_benchmark(folder: Path, how: How | None = None) -> Replay:
    """Run the benchmark in a folder."""
    found = json.loads(_output(folder, ["--json", *(how or How()).options]))
    return Replay(**{field.name: found[field.name] for field in fields(Replay) if field.name in found})


def run_written(folder: Path, how: How, choices: Choices | None, keep: str | Path | None) -> Replay:
    """Run a benchmark that the user has named; refuses choices that were made when it was written."""
    if choices not in (None, Choices()):
        raise ForetraceError(
            f"{folder} is a benchmark: what it takes of the step, and how, was chosen when it was written",
            "Write another one from the recording, with foretrace benchmark and these options.",
        )
    if keep is not None:
        raise ForetraceError(f"{folder} is a benchmark already", "Leave out --keep, or copy the folder.")
    if how.delayed:
        how.check_delay(_world(folder), str(folder))
    return run_benchmark(folder, how)


def _world(folder: Path) -> int:
    """Number of ranks of the job that a benchmark was made of."""
    path = next(path for path in (folder / "ranks.json", folder / "calls.json") if path.is_file())
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return len(facts["ranks"]) if path.name == "ranks.json" else int(facts["world"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ForetraceError(f"{path} does not hold what it should", "Write the benchmark again.") from None


def _output(folder: Path, options: Sequence[str]) -> str:
    """Standard output of ``run.py`` with these options."""
    command = [sys.executable, str(folder / "run.py"), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, PARENT_VARIABLE: str(os.getpid())}
    )
    if done.returncode == 0:
        return done.stdout
    reason = _failure_reason(done.returncode, done.stderr)
    if done.returncode == REFUSED:
        raise ForetraceError(reason)
    raise ForetraceError(
        f"the benchmark failed: {reason}", f"Write it with foretrace benchmark, and see {folder.name}/step.py."
    )


def _failure_reason(code: int, errors: str) -> str:
    """Why a run ended as it did.

    >>> _failure_reason(1, "a warning\\nrun.py: no memory"), _failure_reason(-9, "a warning"), _failure_reason(3, "")
    ('no memory', 'it was ended by SIGKILL', 'it ended with exit code 3')
    """
    if code < 0:  # it could not report anything itself
        return f"it was ended by {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1].removeprefix("run.py: ").removeprefix("error: ") if lines else f"it ended with exit code {code}"
