"""Measuring kernel families for some minutes, batch by batch, into a folder that a later run goes on with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foretrace._progress import OnProgress, Progress
from foretrace.calibration.device_facts import CEILINGS
from foretrace.calibration.timing.device import device_name, is_gpu, machine_facts
from foretrace.calibration.timing.timer import time_cases
from foretrace.cost_models.kernels.families import DRAWN, case_number
from foretrace.errors import ForetraceError
from foretrace.graph import Op, Tensor
from foretrace.platform.measurements.cases import Case
from foretrace.platform.measurements.kernels import SUFFIX, Batch, close_batch, open_batch, read_openings

if TYPE_CHECKING:
    from foretrace.calibration.timing.workers import Workers

BATCH = 256
"""Cases under one profile."""
TURN = 0.5, 4.0
"""Seconds, at least and at most, that a family is measured before it is the turn of the next one."""
MAX_ELEMENTS = {"cuda": 2**29, "cpu": 2**18}
"""Elements of the largest tensors, by kind of device."""
WARM_UP = 1.0
"""Seconds of GEMMs before anything counts: an idle GPU runs at a fraction of its clock."""
CEILING_SIDE = {"cuda": 8192, "cpu": 256}
"""Side of the square matrices of the ceilings."""
CEILING_COPY = {"cuda": 2**28, "cpu": 2**25}
"""Elements of float32 that are copied: more than caches hold."""
CEILING_DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass
class MeasuredFamily:
    """The measurement of a kernel family: cases, failures, seconds, and how far repeats differ."""

    family: str
    cases: int = 0
    failed: int = 0
    seconds: float = 0.0
    spreads: list[float] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    """Time of the reference GEMM in each batch."""
    problem: str = ""
    """The error of the first case that failed."""

    @property
    def spread(self) -> float | None:
        """Median over the cases of the range of their repeats, as a share of the time; None where none was repeated."""
        return statistics.median(self.spreads) if self.spreads else None

    def add_batch(self, batch: Batch) -> None:
        """Count a batch in."""
        bad = [m for m in batch.measurements if m.error]
        self.cases += len(batch.measurements) - len(bad)
        self.failed += len(bad)
        self.spreads += [m.spread("cold") for m in batch.measurements if len(m.cold) > 1]
        self.references.append(batch.reference_us)
        self.problem = self.problem or next((f"{m.case.op.name}: {m.error}" for m in bad), "")

    def add(self, later: MeasuredFamily) -> None:
        """Count in a later round of the same family."""
        self.cases += later.cases
        self.failed += later.failed
        self.seconds += later.seconds
        self.spreads += later.spreads
        self.references += later.references
        self.problem = self.problem or later.problem

    def progress(self, done: float = 0.0, of: float = 0.0) -> Progress:
        """How far it is, after so many seconds of all."""
        return Progress(f"{self.family}: {self.cases:,} cases", done, of)


@dataclass(frozen=True)
class CaseRange:
    """Cases of a family by number, to be drawn by the process that measures them."""

    family: str
    first: int
    last: int
    max_elements: int
    """Elements of their largest tensors."""
    kind: str
    """Of the device."""
    series: str = ""

    def __iter__(self) -> Iterator[Case]:
        for number in range(self.first, self.last):
            yield case_number(self.family, number, self.max_elements, self.kind, self.series)


def measure_families(
    folder: Path,
    device: Any,
    minutes: float,
    families: Sequence[str] = (),
    on_progress: OnProgress = lambda progress: None,
    series: str = "",
    shares: Mapping[str, float] | None = None,
    workers: Workers | None = None,
) -> list[MeasuredFamily]:
    """Measure cases of the families until the time is up; all families where none is named.

    Each family has a file in the folder, and goes on after its last case there. Another series is other cases drawn in
    the same way. The families' own shares of the time may be replaced by ``shares``. Families that a library plans
    slowly are measured by the workers as soon as these are ready.

    >>> import tempfile
    >>> done, = measure_families(Path(tempfile.mkdtemp()), torch.device("cpu"), minutes=0.02, families=["fills"])
    >>> done.family, done.cases > 0
    ('fills', True)
    """
    chosen = list(families) or list(DRAWN)
    folder.mkdir(parents=True, exist_ok=True)
    next_case = {name: next_case_in(folder / f"{name}{SUFFIX}", device_name(device)) for name in chosen}
    done = {name: MeasuredFamily(name) for name in chosen}
    warm_up(device)
    machine = machine_facts(device)
    begun = time.monotonic()
    end = begun + 60 * minutes
    share = {name: (shares or {}).get(name, DRAWN[name].share) for name in chosen}
    while (begin := time.monotonic()) < end:
        # Where the time is too short for all, those come first that earlier runs left out.
        name = min(chosen, key=lambda name: (done[name].seconds / share[name], next_case[name]))
        path, part = folder / f"{name}{SUFFIX}", 60 * minutes * share[name] / sum(share.values())
        first = next_case[name]
        cases = CaseRange(name, first, first + BATCH, MAX_ELEMENTS[device.type], device.type, series)
        if workers and workers.ready and DRAWN[name].slow_to_plan:
            batches = workers.measure(path, cases, machine, until=min(end, begin + part))
        else:
            until = min(end, begin + min(TURN[1], max(TURN[0], part)))
            batches = iter([measure_batch(path, cases, Batch(cases.first, cases.last, machine), device, until)])
        for batch in batches:
            next_case[name] = max(next_case[name], batch.last)
            done[name].add_batch(batch)
            on_progress(done[name].progress(time.monotonic() - begun, 60 * minutes))
        done[name].seconds += time.monotonic() - begin
    return list(done.values())


def next_case_in(path: Path, here: str) -> int:
    """The number of the case to go on with, in a file that must have been made on a device of this name."""
    batches = read_openings(path)
    for batch in batches:
        there = batch.machine.get("device")
        if there != here:
            raise ForetraceError(f"{path} was measured on {there}, this is {here}", "Give another --out folder.")
    return max((batch.last for batch in batches), default=0)  # batches of several processes are in no order


def measure_batch(path: Path, cases: Iterable[Case], batch: Batch, device: Any, until: float) -> Batch:
    """Measure cases until the time is up, and append them to a file."""
    open_batch(path, batch)
    fill_batch(batch, cases, device, until)
    close_batch(path, batch)
    return batch


def fill_batch(batch: Batch, cases: Iterable[Case], device: Any, until: float = float("inf")) -> None:
    """Measure cases until the time is up, after the reference GEMM."""
    reference, *batch.measurements = time_cases(chain([reference_case(device)], cases), device, until)
    batch.reference_us = round(reference.us("warm"), 3)
    if is_gpu(device) and torch.cuda.memory_reserved(device) > torch.cuda.mem_get_info(device)[1] / 2:
        torch.cuda.empty_cache()


def reference_case(device: Any) -> Case:
    """A GEMM large enough to load the device.

    >>> reference_case(torch.device("cpu")).op.name
    'aten::mm'
    """
    side, dtype = (4096, "bfloat16") if is_gpu(device) else (256, "float32")
    square = Tensor((side, side), dtype)
    return Case(Op("aten::mm", (square, square), overload="default"))


def warm_up(device: Any) -> None:
    """Load the device until its clocks are up."""
    time_cases([reference_case(device)], device)
    end = time.monotonic() + WARM_UP
    while is_gpu(device) and time.monotonic() < end:
        time_cases([reference_case(device)] * 32, device)


def measure_ceilings(folder: Path, device: Any) -> None:
    """Measure, once, calls that come close to the device's peaks: square GEMMs of every dtype, and a large copy."""
    path = folder / f"{CEILINGS}{SUFFIX}"
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    cases = ceiling_cases(device.type)
    batch = Batch(0, len(cases), machine_facts(device), time_cases(cases, device))
    open_batch(path, batch)
    close_batch(path, batch)


def ceiling_cases(kind: str) -> list[Case]:
    """The calls of the ceilings, for a kind of device."""
    square = (CEILING_SIDE[kind], CEILING_SIDE[kind])
    gemms = [Op("aten::mm", (Tensor(square, dtype),) * 2, overload="default") for dtype in CEILING_DTYPES]
    cases = [Case(op) for op in gemms]
    if kind == "cuda":
        cases.append(Case(gemms[CEILING_DTYPES.index("float32")], tf32=True))
    whole = Tensor((CEILING_COPY[kind],), "float32")
    return [*cases, Case(Op("aten::copy_", (whole, whole), overload="default"))]


def reference_drift(done: Sequence[MeasuredFamily]) -> float:
    """How much longer the reference GEMM took at worst than at best: above 0.1 the device was busy or throttled.

    >>> round(reference_drift([MeasuredFamily("matrix", references=[10.0, 12.0])]), 2)
    0.2
    """
    seen = _references(done)
    return seen[-1] / seen[0] - 1 if seen else 0.0


def typical_drift(done: Sequence[MeasuredFamily]) -> float:
    """The drift without the slowest and the fastest tenth of the batches; 0 where there are fewer than ten.

    >>> round(typical_drift([MeasuredFamily("matrix", references=[10.0] * 8 + [12.0, 90.0])]), 2)
    0.2
    """
    seen = _references(done)
    few = len(seen) // 10
    return seen[-1 - few] / seen[few] - 1 if few else 0.0


def _references(done: Sequence[MeasuredFamily]) -> list[float]:
    return sorted(us for family in done for us in family.references if us > 0)
