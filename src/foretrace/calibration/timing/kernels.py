"""Measures the families of kernels for some minutes, into a folder that a later run goes on with."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foretrace.cost_models.kernels.families import DRAWN, case_number
from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.platform.cases import Case
from foretrace.platform.measure.machine import device_name, facts
from foretrace.platform.measure.timed import timed
from foretrace.platform.measurements import SUFFIX, Batch, close_batch, open_batch, read_openings

if TYPE_CHECKING:
    from foretrace.platform.measure.crew import Crew

BATCH = 256
"""Cases under one profile."""
TURN = 0.5, 4.0
"""Seconds, at least and at most, that a family is measured before the next one has its turn."""
MOST = {"cuda": 2**29, "cpu": 2**18}
"""Elements of the largest tensors, by kind of device."""
WARM_UP = 1.0
"""Seconds of products before anything counts: an idle GPU runs at a fraction of its clock."""


@dataclass
class Progress:
    """How far a family is."""

    family: str
    cases: int = 0
    failed: int = 0
    seconds: float = 0.0
    spreads: list[float] = field(default_factory=list)
    references: list[float] = field(default_factory=list)
    problem: str = ""
    """What the first case that failed said."""

    @property
    def spread(self) -> float | None:
        """Median over the cases of how far their repeats lie apart, as a share of the time; None where none has any."""
        return statistics.median(self.spreads) if self.spreads else None

    def add(self, batch: Batch) -> None:
        """Count a batch in."""
        bad = [m for m in batch.measurements if m.error]
        self.cases += len(batch.measurements) - len(bad)
        self.failed += len(bad)
        self.spreads += [m.spread("cold") for m in batch.measurements if len(m.cold) > 1]
        self.references.append(batch.reference_us)
        self.problem = self.problem or next((f"{m.case.op.name}: {m.error}" for m in bad), "")

    def join(self, later: Progress) -> None:
        """Count in what was measured of the same family after this."""
        self.cases += later.cases
        self.failed += later.failed
        self.seconds += later.seconds
        self.spreads += later.spreads
        self.references += later.references
        self.problem = self.problem or later.problem


@dataclass(frozen=True)
class Drawn:
    """Cases of a family by number, to be drawn wherever they are measured."""

    family: str
    first: int
    last: int
    most: int
    """Elements of their largest tensors."""
    kind: str
    """Of the device."""
    series: str = ""

    def __iter__(self) -> Iterator[Case]:
        for number in range(self.first, self.last):
            yield case_number(self.family, number, self.most, self.kind, self.series)


def calibrate(
    folder: Path,
    device: Any,
    minutes: float,
    families: Sequence[str] = (),
    report: Callable[[Progress], None] = lambda progress: None,
    series: str = "",
    shares: Mapping[str, float] | None = None,
    crew: Crew | None = None,
) -> list[Progress]:
    """Measure cases of the families, all of them where none is named, until the time is up.

    Each family has a file in the folder, and goes on after its last case there. Another series is other cases drawn
    in the same way. The time is shared as the families say, or as ``shares`` does. Families that a library plans slowly
    are measured by the crew as soon as one is ready.

    >>> import tempfile
    >>> done, = calibrate(Path(tempfile.mkdtemp()), torch.device("cpu"), minutes=0.02, families=["fills"])
    >>> done.family, done.cases > 0
    ('fills', True)
    """
    chosen = list(families) or list(DRAWN)
    folder.mkdir(parents=True, exist_ok=True)
    next_case = {name: next_case_in(folder / f"{name}{SUFFIX}", device_name(device)) for name in chosen}
    done = {name: Progress(name) for name in chosen}
    warm_up(device)
    machine = facts(device)
    end = time.monotonic() + 60 * minutes
    share = {name: (shares or {}).get(name, DRAWN[name].share) for name in chosen}
    while (begin := time.monotonic()) < end:
        # Where the time is too short for all, those come first that earlier runs left out.
        name = min(chosen, key=lambda name: (done[name].seconds / share[name], next_case[name]))
        path, part = folder / f"{name}{SUFFIX}", 60 * minutes * share[name] / sum(share.values())
        first = next_case[name]
        drawn = Drawn(name, first, first + BATCH, MOST[device.type], device.type, series)
        if crew and crew.ready and DRAWN[name].slow_to_plan:
            batches = crew.measure(path, drawn, machine, until=min(end, begin + part))
        else:
            until = min(end, begin + min(TURN[1], max(TURN[0], part)))
            batches = iter([measure_batch(path, drawn, Batch(drawn.first, drawn.last, machine), device, until)])
        for batch in batches:
            next_case[name] = max(next_case[name], batch.last)
            done[name].add(batch)
            report(done[name])
        done[name].seconds += time.monotonic() - begin
    return list(done.values())


def slowed(done: Sequence[Progress]) -> float:
    """How much longer the reference call took at worst than at best: above 0.1 the device was busy or throttled.

    >>> round(slowed([Progress("matrix", references=[10.0, 12.0])]), 2)
    0.2
    """
    seen = [us for progress in done for us in progress.references if us > 0]
    return max(seen) / min(seen) - 1 if seen else 0.0


def measure_batch(path: Path, cases: Iterable[Case], batch: Batch, device: Any, until: float) -> Batch:
    """Measure cases until the time is up, and append them to a file."""
    open_batch(path, batch)
    fill_batch(batch, cases, device, until)
    close_batch(path, batch)
    return batch


def fill_batch(batch: Batch, cases: Iterable[Case], device: Any, until: float = float("inf")) -> None:
    """Measure cases until the time is up."""
    reference, *batch.measurements = timed(chain([reference_case(device)], cases), device, until)
    batch.reference_us = round(reference.us("warm"), 3)
    if device.type == "cuda" and torch.cuda.memory_reserved(device) > torch.cuda.mem_get_info(device)[1] / 2:
        torch.cuda.empty_cache()


def reference_case(device: Any) -> Case:
    """A product large enough to load the device.

    >>> reference_case(torch.device("cpu")).op.name
    'aten::mm'
    """
    side, dtype = (4096, "bfloat16") if device.type == "cuda" else (256, "float32")
    square = Tensor((side, side), dtype)
    return Case(Op("aten::mm", (square, square), overload="default"))


def warm_up(device: Any) -> None:
    """Load the device until its clocks are up."""
    timed([reference_case(device)], device)
    end = time.monotonic() + WARM_UP
    while device.type == "cuda" and time.monotonic() < end:
        timed([reference_case(device)] * 32, device)


def next_case_in(path: Path, here: str) -> int:
    """The number to go on with, where the file was made on such a device."""
    batches = read_openings(path)
    for batch in batches:
        there = batch.machine.get("device")
        if there != here:
            raise ForetraceError(f"{path} was measured on {there}, this is {here}", "Give another --out folder.")
    return max((batch.last for batch in batches), default=0)  # those of several processes are in no order
