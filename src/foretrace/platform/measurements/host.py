"""Raw measurements of a host, in ``raw/host.jsonl.gz``, one JSON object a line.

| line | holds |
| --- | --- |
| ``{"run": ...}`` | begins a run: on what machine, when |
| ``{"step": name, ...}`` | the calls of a small training step, as columns |
| ``{"single": "", ...}`` | the calls that are timed alone |
| ``{"plain": name, "us": [[clearing, forward, backward, optimizer], ...]}`` | host time of whole steps, unprofiled |
| ``{"inference": name, "us": [...]}`` | host time of the forward alone, without gradients |
| ``{"rested": name, "waited": ms, "us": [...]}`` | the same of a step after a wait for the device |
| ``{"profiled": name, ...}`` | each call of a step in a light profile, profiling overhead included |
| ``{"launched": [...]}`` | launches of each single call |
| ``{"alone": [...]}`` | host time of each single call |
| ``{"sharded": [call, planned]}`` | extra time of an optimizer's call on shards, and of planning one |
| ``{"gathered": [group, parameter]}`` | Python around gathering a group of parameters, and for each of them |
| ``{"compiled": [entry, argument, kernel, call, backward]}`` | entering a compiled program, and parts of one |
| ``{"gaps": [forward, backward, optimizer]}`` | on a CPU: time between two calls of a larger step |

In older files forward includes clearing, which is NaN then, and to enter a compiled backward takes what a forward does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.platform.measurements.journal import read_entries

HOST_FILE = "host.jsonl.gz"


@dataclass
class Calls:
    """Calls of a step in order, as columns: what host time is explained by.

    >>> len(Calls(["aten::mm"], [0], [1], [0]))
    1
    """

    name: list[str] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    """Position in `foretrace.graph.PHASES`."""
    entered: list[int] = field(default_factory=list)
    """Modules entered since the call before."""
    tensors: list[int] = field(default_factory=list)
    """Tensors in the longest list among the arguments; 0 where there is none."""

    def __len__(self) -> int:
        return len(self.name)

    def line(self, kind: str, name: str) -> dict[str, Any]:
        """The line of the file that holds them."""
        return {kind: name, **asdict(self)}


@dataclass
class Profiled:
    """Each call of a step in a light profile, in microseconds; -1 for a call that the profile does not show."""

    to_launch: list[float] = field(default_factory=list)
    launching: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)


class StepAfterWait(NamedTuple):
    """A step that began after the host had waited for the device."""

    waited_ms: float
    us: list[float]


@dataclass
class StepTimes:
    """One small step: its calls, and all its measurements."""

    calls: Calls
    plain: list[list[float]] = field(default_factory=list)
    rested: list[StepAfterWait] = field(default_factory=list)
    profiled: list[Profiled] = field(default_factory=list)
    inference: list[float] = field(default_factory=list)
    """The forward without gradients; empty in older files."""


@dataclass
class HostRun:
    """All measurements of one calibration of the host."""

    machine: dict[str, Any]
    steps: dict[str, StepTimes] = field(default_factory=dict)
    single: Calls = field(default_factory=Calls)
    launched: list[float] = field(default_factory=list)
    """Launches of each single call; empty where they were not counted."""
    alone: list[list[float]] = field(default_factory=list)
    sharded: list[list[float]] = field(default_factory=list)
    """Extra microseconds of an optimizer's call on shards, and of planning one."""
    gathered: list[list[float]] = field(default_factory=list)
    """Microseconds of Python around gathering a group of parameters, and for each of them."""
    compiled: list[list[float]] = field(default_factory=list)
    """Microseconds to enter a compiled program, of an argument, of a generated kernel, around a call of PyTorch, and to
    enter a compiled backward; after each round of steps."""
    gaps: list[list[float]] = field(default_factory=list)
    """Microseconds between two calls in forward, backward and optimizer of a larger step, on a CPU."""


def read_host_runs(path: Path) -> list[HostRun]:
    """The runs of a file, in order."""
    runs: list[HostRun] = []
    read_entries(path, "no measurement of a host", lambda line: _add_line(line, runs))
    return runs


def _add_line(line: dict[str, Any], runs: list[HostRun]) -> None:
    if "run" in line:
        runs.append(HostRun(dict(line["run"])))
        return
    run = runs[-1]
    if "step" in line:
        run.steps[line["step"]] = StepTimes(_columns(Calls, line))
    elif "single" in line:
        run.single = _columns(Calls, line)
    elif "plain" in line:
        run.steps[line["plain"]].plain += [_phases(times) for times in line["us"]]
    elif "inference" in line:
        run.steps[line["inference"]].inference += [float(us) for us in line["us"]]
    elif "rested" in line:
        run.steps[line["rested"]].rested.append(StepAfterWait(float(line["waited"]), _phases(line["us"])))
    elif "launched" in line:
        run.launched = _numbers(line["launched"], len(run.single))
    elif "alone" in line:
        run.alone.append(_numbers(line["alone"], len(run.single)))
    elif "profiled" in line:
        step = run.steps[line["profiled"]]
        step.profiled.append(_columns(Profiled, line, len(step.calls)))
    else:
        ((kind, numbers),) = line.items()
        if kind == "compiled" and len(numbers) == 4:
            numbers = [*numbers, numbers[0]]
        getattr(run, kind).append(_numbers(numbers, {"sharded": 2, "gathered": 2, "compiled": 5, "gaps": 3}[kind]))


def _columns(kind: Any, line: dict[str, Any], length: int | None = None) -> Any:
    columns = {f.name: list(line[f.name]) for f in fields(kind)}
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1 or (length is not None and lengths != {length}):
        raise ValueError("its columns differ in length")
    return kind(**columns)


def _phases(us: Any) -> list[float]:
    return _numbers(us, 4) if len(us) > 3 else [nan, *_numbers(us, 3)]


def _numbers(values: Any, length: int) -> list[float]:
    if len(values) != length:
        raise ValueError(f"{len(values)} numbers where {length} should be")
    return [float(value) for value in values]
