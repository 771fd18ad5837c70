"""Measuring host time: small training steps, unprofiled, after a wait, and in light profiles; and single calls.

Steps take turns in short rounds, so that a host that is slow for a while is slow for all of them. Each round is
appended to a file, and so is what a later run measures.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from foretrace._progress import OnProgress, Progress
from foretrace.calibration.host.compiled import compiled_costs
from foretrace.calibration.host.fsdp import gather_costs, sharded_costs
from foretrace.calibration.host.profile import gaps_us, launches_of, profile_step
from foretrace.calibration.host.steps import STEPS
from foretrace.calibration.host.training import FORWARD, Training, calls_of, longest_list
from foretrace.calibration.timing.call import Call
from foretrace.calibration.timing.device import (
    cpu_model,
    device_name,
    find_device,
    is_gpu,
    machine_facts,
    synchronize,
)
from foretrace.cost_models.kernels.families import DRAWN, case_number
from foretrace.errors import ForetraceError
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.host import HOST_FILE, Calls, read_host_runs
from foretrace.platform.measurements.journal import append

T = TypeVar("T")

WARM_UP = 3
"""Steps before anything counts."""
IN_A_ROW = 3
"""Unprofiled steps of one kind before it is the turn of the next kind."""
PROFILE_EVERY = 4
"""Rounds, of which one also profiles each step."""
WAIT_EVERY = 2
"""Rounds, of which one also times each step after a wait for the device."""
WAITS_MS = (1.0, 4.0, 15.0, 60.0)
"""How long the host waits: as in device-bound steps, short and long ones."""
CYCLES_PER_MS = 1.8e6
"""Clock cycles of a GPU in a millisecond, roughly."""
NOISY = 0.25
"""Range of a step's repeats, as a share of its time, from which the host counts as noisy."""
LIST_CALLS = ("aten::_foreach_", "aten::_fused_")
"""Calls on lists of tensors: made as optimizers make them, since ``torch.ops`` unpacks lists slowly."""
MAX_ELEMENTS = 2**14
"""Of the tensors of single calls: the host must never wait for the device."""
DRAWN_CASES = 150
"""Cases of a family among which single calls are chosen."""
CASES_PER_OVERLOAD = 3
"""Single calls of one overload; of calls on lists, whose length matters, four times as many."""


@dataclass
class HostOutcome:
    """Host overheads measured so far, and how far repeats differ."""

    rounds: int = 0
    seconds: float = 0.0
    totals: dict[str, list[float]] = field(default_factory=dict)
    """Microseconds of the unprofiled steps, by name."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Steps that this PyTorch or device can't do, and the error."""

    @property
    def spread(self) -> float:
        """Range of the middle four fifths of a step's repeats, as a share of its time: the median over steps.

        >>> HostOutcome(totals={"tiny": [10.0] * 9 + [20.0, 11.0]}).spread
        0.1
        """
        spreads = [_spread(times) for times in self.totals.values() if len(times) > 1]
        return statistics.median(spreads) if spreads else 0.0

    @property
    def noisy(self) -> bool:
        """Whether other load kept the host busy."""
        return self.spread > NOISY


def _spread(times: list[float]) -> float:
    ordered = sorted(times)
    cut = len(ordered) // 10
    return (ordered[-1 - cut] - ordered[cut]) / statistics.median(ordered)


@dataclass
class _Step:
    name: str
    training: Training
    calls: Calls


def measure_host(
    out: Path,
    minutes: float,
    on_progress: OnProgress = lambda progress: None,
    device: Any = None,
    steps: list[str] | None = None,
) -> HostOutcome:
    """Measure the host into ``out/host.jsonl.gz`` until the time is up; at least one round is made.

    Measurements of an earlier run stay in the folder. The device is the one that the host drives; steps are names in
    `STEPS`, all where left out.

    >>> import tempfile
    >>> done = measure_host(Path(tempfile.mkdtemp()), 0.0, device=torch.device("cpu"), steps=["two towers"])
    >>> done.rounds, list(done.totals)
    (1, ['two towers'])
    """
    began = time.monotonic()
    device = device or find_device()
    path = out / HOST_FILE
    _refuse_another_device(path, device)
    out.mkdir(parents=True, exist_ok=True)
    done = HostOutcome()
    with _training_threads(device):
        prepared = [found for name in steps or STEPS if (found := _prepare(name, device, done))]
        single = SingleCalls(device) if steps is None else None
        append(path, _head(prepared, single, device))
        while not done.rounds or time.monotonic() - began < 60 * minutes:
            append(path, _round(prepared, single, done))
            if single:
                measure_around_calls(out, device)
            done.rounds += 1
            done.seconds = time.monotonic() - began
            on_progress(Progress(f"host: {done.rounds} rounds", done.seconds, 60 * minutes))
    return done


def measure_around_calls(out: Path, device: Any) -> None:
    """Append to the last run in a folder the cost of FSDP's Python, of compiled programs, and on a CPU the gaps."""
    found: dict[str, tuple[float, ...] | None] = {"sharded": sharded_costs(device), "gathered": gather_costs(device)}
    found["compiled"] = compiled_costs(device)
    if not is_gpu(device):
        found["gaps"] = gaps_us()
    append(out / HOST_FILE, [{name: _rounded(costs)} for name, costs in found.items() if costs])


def _refuse_another_device(path: Path, device: Any) -> None:
    for run in read_host_runs(path):
        if run.machine.get("device") != device_name(device):
            there, here = run.machine.get("device"), device_name(device)
            raise ForetraceError(f"{path} was measured with {there}, this is {here}", "Give another --out folder.")


@contextmanager
def _training_threads(device: Any) -> Iterator[None]:
    """On a CPU use one thread: with several, small calls wait for each other."""
    threads = torch.get_num_threads()
    if not is_gpu(device):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.collect()


def _prepare(name: str, device: Any, done: HostOutcome) -> _Step | None:
    try:
        training = STEPS[name](device)
        for _ in range(WARM_UP):
            training.timed_step()
        calls = calls_of(training)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        done.left_out[name] = str(error).strip().split("\n")[0][:200]
        return None
    return _Step(name, training, calls)


def _head(steps: list[_Step], single: SingleCalls | None, device: Any) -> list[dict[str, Any]]:
    """The first lines of a run: the machine, and all calls that are going to be timed."""
    run = {"run": {"cpu": cpu_model(), **machine_facts(device)}}
    alone = [single.calls.line("single", ""), {"launched": single.launches()}] if single else []
    return [run, *(step.calls.line("step", step.name) for step in steps), *alone]


def _round(steps: list[_Step], single: SingleCalls | None, done: HostOutcome) -> list[dict[str, Any]]:
    """Each step a few times, in random order."""
    lines: list[dict[str, Any]] = []
    for step in random.sample(steps, len(steps)):
        plain = _in_a_row(step.training.timed_step)
        done.totals.setdefault(step.name, []).extend(sum(phases) for phases in plain)
        lines.append({"plain": step.name, "us": [_rounded(phases) for phases in plain]})
        lines.append({"inference": step.name, "us": _rounded(_in_a_row(step.training.timed_inference))})
        if done.rounds % PROFILE_EVERY == 0:
            lines.append({"profiled": step.name, **asdict(profile_step(step.training, step.calls))})
        if done.rounds % WAIT_EVERY == 0 and torch.cuda.is_initialized():
            lines.append(_after_wait(step))
    if single:
        lines.append({"alone": _rounded(single.timed())})
    return lines


def _in_a_row(timed: Callable[[], T]) -> list[T]:
    """Repeats of a step in a row; the first one, which comes after another step, is dropped."""
    times = []
    for _ in range(IN_A_ROW + 1):
        times.append(timed())
        _drain()
    return times[1:]


def _after_wait(step: _Step) -> dict[str, Any]:
    """A step right after a wait for the device, as in device-bound training."""
    waited = _wait_for_device(random.choice(WAITS_MS))
    phases = _rounded(step.training.timed_step())
    _drain()
    return {"rested": step.name, "waited": round(waited, 3), "us": phases}


def _wait_for_device(ms: float) -> float:
    """Keep the device busy for about so many milliseconds, and wait for it; how many it were."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    torch.cuda._sleep(round(ms * CYCLES_PER_MS))
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end))


def _drain() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _rounded(values: Any) -> list[float]:
    return [round(value, 2) for value in values]


class SingleCalls:
    """Calls with small tensors, a few of every overload that the kernel families draw: most are in no small step.

    >>> single = SingleCalls(torch.device("cpu"), ["fills"])
    >>> len(single.timed()) == len(single.calls) > 0
    True
    """

    def __init__(self, device: Any, families: list[str] | None = None) -> None:
        self._device = device
        self._ready: list[Call] = []
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of many random shapes
            for case in _cases(device, families or list(DRAWN)):
                self._add(case)
        names = [call.case.op.name for call in self._ready]
        lengths = [longest_list((*call.args, *call.kwargs.values())) for call in self._ready]
        self.calls = Calls(names, [FORWARD] * len(names), [0] * len(names), lengths)

    def _add(self, case: Case) -> None:
        try:
            call = Call(case, self._device)
            if case.op.name.startswith(LIST_CALLS):
                call.function = getattr(torch, case.op.name.removeprefix("aten::"), call.function)
            call()
        except (RuntimeError, ValueError, TypeError, IndexError, ForetraceError):
            return  # not on this device, or not in this PyTorch
        self._ready.append(call)

    def launches(self) -> list[int]:
        """How many launches each makes."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return launches_of(self._ready)

    def timed(self) -> list[float]:
        """Make each once, in random order; the host time of each, in the order of `calls`.

        The device is drained before each: some calls wait for it, which is no host time.
        """
        taken = [0.0] * len(self._ready)
        order = random.sample(range(len(self._ready)), len(self._ready))
        clock = time.perf_counter_ns
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for place in order:
                call = self._ready[place]
                synchronize(self._device)
                started = clock()
                result = call()
                taken[place] = (clock() - started) / 1e3
                del result
        return taken


def _cases(device: Any, families: list[str]) -> list[Case]:
    chosen: list[Case] = []
    counts: dict[tuple[str, str], int] = {}
    for family in families:
        for number in range(DRAWN_CASES):
            case = case_number(family, number, MAX_ELEMENTS, device.type)
            op = case.op
            most = 4 * CASES_PER_OVERLOAD if op.name.startswith(LIST_CALLS) else CASES_PER_OVERLOAD
            count = counts.get((op.name, op.overload), 0)
            if count < most:
                counts[op.name, op.overload] = count + 1
                chosen.append(case)
    return chosen
