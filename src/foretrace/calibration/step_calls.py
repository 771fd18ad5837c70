"""Times exactly the calls of a step, one by one: the model itself never runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from foretrace.graph import Indices, Op, Tf32
from foretrace.platform.cases import EXACT, Case, case_key, recorded_cases
from foretrace.platform.measure.calibrate import BATCH, Progress, measure_batch, next_case_in, warm_up
from foretrace.platform.measure.machine import device_name, facts
from foretrace.platform.measurements import SUFFIX, Batch, Measurement, close_batch, open_batch, read_batches


def measure_ops(
    ops: Sequence[Op],
    folder: Path,
    device: Any,
    minutes: float,
    report: Callable[[Progress], None] = lambda progress: None,
    indices: Iterable[Indices] = (),
    tf32: Tf32 | None = None,
) -> Progress:
    """Measure each distinct call among ops, into the folder's file of exact calls; those already there are left out.

    Parameters
    ----------
    ops
        Of a recording or a sketch.
    folder, device, minutes, report
        As for `calibrate`.
    indices
        Statistics of the ids that ops were given; ``op`` is the position in ``ops``.
    tf32
        What the step's settings say of float32 on the matrix units.

    >>> import tempfile, torch
    >>> from foretrace.graph import Tensor
    >>> folder, x = Path(tempfile.mkdtemp()), Tensor((64,), "float32", "cuda:0", id=1, storage=1)
    >>> relu = Op("aten::relu", (x,), overload="default")
    >>> measure_ops([relu, relu], folder, torch.device("cpu"), minutes=0.1).cases
    1
    >>> measure_ops([relu, relu], folder, torch.device("cpu"), minutes=0.1).cases
    0
    """
    return measure_cases(recorded_cases(ops, indices, tf32), folder, device, minutes, report)


def measure_cases(
    cases: Iterable[Case],
    folder: Path,
    device: Any,
    minutes: float,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Measure cases of one step or of several, into the folder's file of exact calls, as `measure_ops` does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{EXACT}{SUFFIX}"
    number = next_case_in(path, device_name(device))
    measured = {case_key(found.case) for batch in read_batches(path) for found in batch.measurements}
    left = iter([case for case in cases if case_key(case) not in measured])
    done = Progress(EXACT)
    warm_up(device)
    machine = facts(device)
    end = time.monotonic() + 60 * minutes
    while next_ones := list(islice(left, BATCH)):
        begin = time.monotonic()
        if begin > end:
            break
        batch = Batch(number, number + len(next_ones), machine)
        measure_batch(path, next_ones, batch, device, until=end)
        number = batch.last
        done.seconds += time.monotonic() - begin
        done.add(batch)
        report(done)
    return done


def add_measured(found: Sequence[Measurement], folder: Path, device: Any) -> Progress:
    """Add calls that were timed otherwise to the folder's file of exact calls."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{EXACT}{SUFFIX}"
    number = next_case_in(path, device_name(device))
    batch = Batch(number, number + len(found), facts(device), list(found))
    open_batch(path, batch)
    close_batch(path, batch)
    done = Progress(EXACT)
    done.add(batch)
    return done
