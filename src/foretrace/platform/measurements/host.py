"""What a host was measured at, kept as it was measured: one file, added to while measuring goes on.

| line | holds |
| --- | --- |
| ``{"run": ...}`` | on what and when the run that begins here was made |
| ``{"step": name, ...}`` | the calls of a small training step, as columns |
| ``{"single": "", ...}`` | the calls that are made alone |
| ``{"plain": name, "us": [[clearing, forward, backward, optimizer], ...]}`` | host time of whole steps, bare |
| ``{"rested": name, "waited": ms, "us": [...]}`` | the same of a step after so long a wait for the device |
| ``{"profiled": name, ...}`` | what a light profile says of each call of a step, the profiler's weight on it |
| ``{"launched": [...]}`` | launches of each single call |
| ``{"alone": [...]}`` | host time of each single call |
| ``{"sharded": [call, planned]}`` | what a call of an optimizer on shards takes longer, and planning one |
| ``{"gathered": [group, parameter]}`` | Python around gathering a group of parameters, and for each of them |
| ``{"gaps": [forward, backward, optimizer]}`` | on processors: what lies between two calls of a larger step |

Older files hold the clearing of gradients inside the forward: there it is NaN.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.graph import ForetraceError
from foretrace.graph.codec import DAMAGE
from foretrace.platform.journal import lines

HOST_FILE = "host.jsonl.gz"


@dataclass
class Calls:
    """Calls of a step in order, as columns: what the host's time is explained by.

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
        """As an entry of the file."""
        return {kind: name, **asdict(self)}


@dataclass
class Profiled:
    """What a light profile says of each call of a step, in microseconds; -1 for a call it does not show."""

    to_launch: list[float] = field(default_factory=list)
    launching: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)


class Waited(NamedTuple):
    """A step that began after the host had waited for the device."""

    waited_ms: float
    us: list[float]


@dataclass
class StepTimes:
    """One small step: its calls, and every time it was measured."""

    calls: Calls
    plain: list[list[float]] = field(default_factory=list)
    rested: list[Waited] = field(default_factory=list)
    profiled: list[Profiled] = field(default_factory=list)


@dataclass
class HostRun:
    """All that one run of the calibration measured."""

    machine: dict[str, Any]
    steps: dict[str, StepTimes] = field(default_factory=dict)
    single: Calls = field(default_factory=Calls)
    launched: list[float] = field(default_factory=list)
    """Launches of each single call; empty where nobody counted them."""
    alone: list[list[float]] = field(default_factory=list)
    sharded: list[list[float]] = field(default_factory=list)
    """Microseconds that a call of an optimizer on shards takes longer, and that planning one takes."""
    gathered: list[list[float]] = field(default_factory=list)
    """The same of Python around gathering a group of parameters, and for each of them."""
    gaps: list[list[float]] = field(default_factory=list)
    """Microseconds between two calls in forward, backward and optimizer of a larger step, where processors do it."""


def read_runs(path: Path) -> list[HostRun]:
    """The runs of a file, in order.

    >>> import tempfile
    >>> from foretrace.platform.journal import append
    >>> path = Path(tempfile.mkdtemp()) / HOST_FILE
    >>> append(path, [{"run": {"device": "cpu"}}, Calls(["aten::mm"], [0], [1], [0]).line("step", "tiny")])
    >>> append(path, [{"plain": "tiny", "us": [[0.1, 1.0, 2.0, 0.5]]}])
    >>> run, = read_runs(path)
    >>> run.machine["device"], run.steps["tiny"].plain
    ('cpu', [[0.1, 1.0, 2.0, 0.5]])
    """
    runs: list[HostRun] = []
    for number, text in enumerate(lines(path), 1):
        try:
            _take(json.loads(text), runs)
        except DAMAGE as error:
            raise ForetraceError(
                f"{path}: line {number} is no measurement of a host ({error})", "Restore the file, or measure again."
            ) from None
    return runs


def _take(line: dict[str, Any], runs: list[HostRun]) -> None:
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
    elif "rested" in line:
        run.steps[line["rested"]].rested.append(Waited(float(line["waited"]), _phases(line["us"])))
    elif "launched" in line:
        run.launched = _numbers(line["launched"], len(run.single))
    elif "alone" in line:
        run.alone.append(_numbers(line["alone"], len(run.single)))
    elif "sharded" in line:
        run.sharded.append(_numbers(line["sharded"], 2))
    elif "gathered" in line:
        run.gathered.append(_numbers(line["gathered"], 2))
    elif "gaps" in line:
        run.gaps.append(_numbers(line["gaps"], 3))
    else:
        step = run.steps[line["profiled"]]
        step.profiled.append(_columns(Profiled, line, len(step.calls)))


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
