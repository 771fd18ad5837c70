"""Measures what the host costs: small training steps, bare, after a wait, and in light profiles; calls alone.

Steps take turns in short rounds, so that a host that slows down for a while slows all of them; what is measured is
added to a file round by round, and a later run adds to the same file.
"""

from __future__ import annotations

import gc
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from foretrace.graph import ForetraceError
from foretrace.platform.host_measurements import HOST_FILE, Calls, read_runs
from foretrace.platform.journal import append
from foretrace.platform.measure.host_gaps import gaps_us
from foretrace.platform.measure.host_profile import profiled
from foretrace.platform.measure.host_sharded import gather_costs, sharded_costs
from foretrace.platform.measure.host_single import SingleCalls
from foretrace.platform.measure.host_steps import STEPS
from foretrace.platform.measure.host_training import Phases, Training
from foretrace.platform.measure.host_wait import WAITS_MS, wait_for_device
from foretrace.platform.measure.host_watch import calls_of
from foretrace.platform.measure.machine import device_name, facts, find_device

WARM_UP = 3
"""Steps before anything counts."""
IN_A_ROW = 3
"""Plain steps of one kind before the next kind has its turn."""
PROFILED = 4
"""Of so many rounds one profiles each step as well."""
RESTED = 2
"""Of so many rounds one times each step after a wait for the device as well."""
NOISY = 0.25
"""Spread of a step's repeats, as a share of its time, from which on the host is called noisy."""


@dataclass
class HostProgress:
    """How far the measuring is."""

    rounds: int = 0
    seconds: float = 0.0
    totals: dict[str, list[float]] = field(default_factory=dict)
    """Microseconds of the plain steps so far, by name."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Steps that this PyTorch or device can't do, and what it said."""

    @property
    def spread(self) -> float:
        """How far the middle four fifths of a step's repeats lie apart, as a share of its time: the median of steps.

        >>> HostProgress(totals={"tiny": [10.0] * 9 + [20.0, 11.0]}).spread
        0.1
        """
        spreads = [_spread(times) for times in self.totals.values() if len(times) > 1]
        return statistics.median(spreads) if spreads else 0.0

    @property
    def noisy(self) -> bool:
        """Whether something else kept the host busy."""
        return self.spread > NOISY


def _spread(times: list[float]) -> float:
    ordered = sorted(times)
    cut = len(ordered) // 10
    return (ordered[-1 - cut] - ordered[cut]) / statistics.median(ordered)


@dataclass
class _Subject:
    name: str
    training: Training
    calls: Calls


def calibrate_host(
    out: Path,
    minutes: float,
    progress: Callable[[HostProgress], None] = lambda progress: None,
    device: Any = None,
    steps: list[str] | None = None,
) -> HostProgress:
    """Measure the host into ``out/host.jsonl.gz`` until the time is up; at least one round is made.

    Parameters
    ----------
    out
        The folder; what an earlier run left there is kept and added to.
    minutes
        How long to measure.
    progress
        Told after each round.
    device
        What the host drives: the first GPU where there is one, else the CPU.
    steps
        Names in `foretrace.platform.measure.host_steps.STEPS`; all where left out.

    >>> import tempfile
    >>> done = calibrate_host(Path(tempfile.mkdtemp()), 0.0, device=torch.device("cpu"), steps=["two towers"])
    >>> done.rounds, list(done.totals)
    (1, ['two towers'])
    """
    began = time.monotonic()
    device = device or find_device()
    path = out / HOST_FILE
    _refuse_another(path, device)
    out.mkdir(parents=True, exist_ok=True)
    done = HostProgress()
    with _as_in_training(device):
        subjects = [found for name in steps or STEPS if (found := _subject(name, device, done))]
        single = SingleCalls(device) if steps is None else None
        append(path, _head(subjects, single, device))
        while not done.rounds or time.monotonic() - began < 60 * minutes:
            append(path, _round(subjects, single, done))
            if single:
                measure_around(out, device)
            done.rounds += 1
            done.seconds = time.monotonic() - began
            progress(done)
    return done


def measure_around(out: Path, device: Any) -> None:
    """Add to the last run in a folder what Python around shards takes, and on processors what lies between calls."""
    found: dict[str, tuple[float, ...] | None] = {"sharded": sharded_costs(device), "gathered": gather_costs(device)}
    if device.type == "cpu":
        found["gaps"] = gaps_us()
    append(out / HOST_FILE, [{name: _rounded(costs)} for name, costs in found.items() if costs])


def _refuse_another(path: Path, device: Any) -> None:
    for run in read_runs(path):
        if run.machine.get("device") != device_name(device):
            there, here = run.machine.get("device"), device_name(device)
            raise ForetraceError(f"{path} was measured with {there}, this is {here}", "Give another --out folder.")


def _processor() -> str:
    """What the processor calls itself, where the system tells."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@contextmanager
def _as_in_training(device: Any) -> Iterator[None]:
    """On the CPU one thread does the work of calls: with several, small calls wait for each other."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.collect()


def _subject(name: str, device: Any, done: HostProgress) -> _Subject | None:
    try:
        training = STEPS[name](device)
        for _ in range(WARM_UP):
            training.timed_step()
        calls = calls_of(training)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        done.left_out[name] = str(error).strip().split("\n")[0][:200]
        return None
    return _Subject(name, training, calls)


def _head(subjects: list[_Subject], single: SingleCalls | None, device: Any) -> list[dict[str, Any]]:
    """What a run begins with: the machine, and all calls that are going to be timed."""
    steps = [subject.calls.line("step", subject.name) for subject in subjects]
    run = {"run": {"cpu": _processor(), **facts(device)}}
    alone = [single.calls.line("single", ""), {"launched": single.launches()}] if single else []
    return [run, *steps, *alone]


def _round(subjects: list[_Subject], single: SingleCalls | None, done: HostProgress) -> list[dict[str, Any]]:
    """Every step a few times, in random order."""
    lines: list[dict[str, Any]] = []
    for subject in random.sample(subjects, len(subjects)):
        plain = _plain(subject.training)
        done.totals.setdefault(subject.name, []).extend(sum(phases) for phases in plain)
        lines.append({"plain": subject.name, "us": [_rounded(phases) for phases in plain]})
        if done.rounds % PROFILED == 0:
            lines.append({"profiled": subject.name, **asdict(profiled(subject.training, subject.calls))})
        if done.rounds % RESTED == 0 and torch.cuda.is_initialized():
            lines.append(_after_a_wait(subject))
    if single:
        lines.append({"alone": _rounded(single.timed())})
    return lines


def _after_a_wait(subject: _Subject) -> dict[str, Any]:
    """A step right after the host has waited for the device, as it does where steps are the device's to finish."""
    waited = wait_for_device(random.choice(WAITS_MS))
    phases = _rounded(subject.training.timed_step())
    _drain()
    return {"rested": subject.name, "waited": round(waited, 3), "us": phases}


def _plain(training: Training) -> list[Phases]:
    """Some steps in a row; the first one, which comes after something else, does not count."""
    times = []
    for _ in range(IN_A_ROW + 1):
        times.append(training.timed_step())
        _drain()
    return times[1:]


def _drain() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _rounded(values: Any) -> list[float]:
    return [round(value, 2) for value in values]
