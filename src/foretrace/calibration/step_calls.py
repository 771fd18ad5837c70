"""Timing exactly the calls of a step: one by one, and on a CPU in the order of the step. The model itself never runs.

A call that is timed alone, again and again, finds its inputs in the cache and its memory mapped. On a CPU that matters:
in a step other calls come in between, and memory that was freed is mapped again, page by page, so that a GEMM with a
new gradient takes up to twice as long. There the step is replayed, and each call is timed in its place; collectives
send nothing.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from foretrace._progress import OnProgress
from foretrace.calibration.timing.device import device_name, machine_facts
from foretrace.calibration.timing.kernels import BATCH, MeasuredFamily, measure_batch, next_case_in, warm_up
from foretrace.graph import Graph
from foretrace.graph.calls import dispatched
from foretrace.graph.operators import launches_nothing
from foretrace.platform.measurements.cases import EXACT, Case, case_key, case_of_each
from foretrace.platform.measurements.kernels import (
    CALL,
    SUFFIX,
    Batch,
    Measurement,
    close_batch,
    open_batch,
    read_batches,
)
from foretrace.processes import temporary_folder
from foretrace.replay import Choices, write_benchmark

WARM_UP_STEPS = 2
"""Replayed steps that do not count."""
MIN_STEPS = 3
"""Replayed steps that are timed, however long they take."""


def step_cases(step: Graph, kind: str) -> dict[int, Case]:
    """The case of each op of a step that does something on a kind of device, by its row."""
    rows = dispatched(step)
    ops = [step.ops[int(row)] for row in rows]
    places = {int(row): place for place, row in enumerate(rows)}
    indices = [replace(found, op=places[found.op]) for found in step.indices if found.op in places]
    # Of all calls, since one that does nothing itself may show the ids of a later one.
    each = zip(rows.tolist(), ops, case_of_each(ops, indices, step.tf32))
    return {row: case for row, op, case in each if case and not launches_nothing(op, kind)}


def measure_cases(
    cases: Iterable[Case],
    folder: Path,
    device: Any,
    minutes: float,
    on_progress: OnProgress = lambda progress: None,
) -> MeasuredFamily:
    """Measure cases of one step or of several, into the folder's file of exact calls; those already there are left out.

    >>> import tempfile; from foretrace.graph import Op, Tensor
    >>> folder, relu = Path(tempfile.mkdtemp()), Case(Op("aten::relu", (Tensor((64,), "float32"),), overload="default"))
    >>> [measure_cases([relu], folder, torch.device("cpu"), minutes=0.1).cases for _ in range(2)]
    [1, 0]
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{EXACT}{SUFFIX}"
    number = next_case_in(path, device_name(device))
    measured = {case_key(found.case) for batch in read_batches(path) for found in batch.measurements}
    left = iter([case for case in cases if case_key(case) not in measured])
    done = MeasuredFamily(EXACT)
    warm_up(device)
    machine = machine_facts(device)
    end = time.monotonic() + 60 * minutes
    while next_ones := list(islice(left, BATCH)):
        begin = time.monotonic()
        if begin > end:
            break
        batch = Batch(number, number + len(next_ones), machine)
        measure_batch(path, next_ones, batch, device, until=end)
        number = batch.last
        done.seconds += time.monotonic() - begin
        done.add_batch(batch)
        on_progress(done.progress(done.seconds, 60 * minutes))
    return done


def add_measurements(found: Sequence[Measurement], folder: Path, device: Any) -> MeasuredFamily:
    """Append calls that were timed in another way to the folder's file of exact calls."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{EXACT}{SUFFIX}"
    number = next_case_in(path, device_name(device))
    batch = Batch(number, number + len(found), machine_facts(device), list(found))
    open_batch(path, batch)
    close_batch(path, batch)
    done = MeasuredFamily(EXACT)
    done.add_batch(batch)
    return done


def time_replay(step: Graph, seconds: float) -> dict[int, list[float]]:
    """Replay a step on the CPU for some time, in this process, and time each of its calls.

    At least three steps are timed. Returns, by row among the graph's ops, the microseconds in each of the steps: of the
    call, and of freeing memory after it.
    """
    with temporary_folder() as place:
        replayed = _benchmark_class()(write_benchmark(step, place / "step", Choices()), device="cpu")
        clock = _CallClock()
        run = replayed.source.clocked(clock.begins)
        steps: list[dict[int, float]] = []
        end = time.monotonic() + seconds
        with torch.no_grad():
            while len(steps) < WARM_UP_STEPS + MIN_STEPS or time.monotonic() < end:
                run(*replayed.inputs)
                steps.append(clock.read())
    return {row: [one[row] for one in steps[WARM_UP_STEPS:]] for row in sorted(replayed.called)}


def _benchmark_class() -> Any:
    """The class that runs a benchmark, imported by the name that it has in a benchmark's folder."""
    home = str(Path(str(import_module("foretrace.replay").__file__)).parent)
    if home not in sys.path:
        sys.path.append(home)
    return import_module("harness.benchmark").Benchmark


class _CallClock:
    """Times calls by the moments at which they begin."""

    def __init__(self) -> None:
        self._begins: list[tuple[int, int]] = []

    def begins(self, number: int) -> None:
        """A call begins, which ends the one before it."""
        self._begins.append((number, time.perf_counter_ns()))

    def read(self) -> dict[int, float]:
        """Microseconds of each call since the last time that it was read."""
        ends = [*(at for _, at in self._begins[1:]), time.perf_counter_ns()]
        took = {number: (end - at) / 1e3 for (number, at), end in zip(self._begins, ends)}
        self._begins.clear()
        return took


def measurements_by_case(times: Mapping[int, list[float]], cases: Mapping[int, Case]) -> list[Measurement]:
    """Times of a step's calls as measurements of its cases: of equal calls their mean, which preserves the sum."""
    alike: dict[int, list[list[float]]] = defaultdict(list)
    known = {id(cases[row]): cases[row] for row in times if row in cases}
    for row in times.keys() & cases.keys():
        alike[id(cases[row])].append(times[row])
    found = []
    for which, case in known.items():
        repeats = [[(CALL, round(mean(each), 3))] for each in zip(*alike[which])]
        found.append(Measurement(case, cold=repeats, warm=repeats))
    return found
