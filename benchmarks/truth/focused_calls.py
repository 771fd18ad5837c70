"""Measures calls of a kind that models of before were far off on, drawn among a family's own cases.

    python -m benchmarks.truth.focused_calls OUT --minutes 3

Each kind is measured for its share of the time, into the file of its family; the families that are new have all of
their cases measured. Some of each go into ``OUT/heldout``, drawn from another seed, for models to be scored on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from foretrace.calibration.timing.device import device_name, find_device, machine_facts
from foretrace.calibration.timing.kernels import (
    MAX_ELEMENTS,
    CaseRange,
    measure_batch,
    measure_families,
    next_case_in,
    warm_up,
)
from foretrace.calibration.timing.workers import Workers, workers_for
from foretrace.cost_models.kernels.families import DRAWN, HELD_OUT, case_number
from foretrace.graph import Op
from foretrace.platform.measurements.kernels import SUFFIX, Batch

NEW = {"recurrent": 2.0, "resampling": 2.0, "fourier": 2.0, "linear_algebra": 1.0, "grid_sampling": 1.0, "pooling": 0.5}
"""Families of which every case is measured, with their shares of the time."""
BATCH = 192
HELD_OUT_SHARE = 0.12
SPREAD = 64
"""Numbers of a family's cases that one focused case is searched among."""


def _is_turned(op: Op) -> bool:
    """A transposed convolution."""
    return op.args[7 if op.name.endswith("backward") else 6] is True


def _few(op: Op) -> bool:
    """A batch of products with a side of a few numbers."""
    return op.name in ("aten::bmm", "aten::baddbmm") and any(min(t.shape) <= 8 for t in op.tensors[-2:])


def _is_full_precision(op: Op) -> bool:
    """A convolution in float32, by TF32."""
    return op.tensors[0].dtype == "float32"


def _is_sequence(op: Op) -> bool:
    """A convolution of sequences."""
    return len(op.tensors[0].shape) == 3


FOCUS: dict[str, tuple[str, Callable[[Op], bool], float]] = {
    "full": ("convolutions", _is_full_precision, 3.0),
    "turned": ("convolutions", lambda op: _is_turned(op) and _is_full_precision(op), 1.5),
    "grouped": ("grouped_convolutions", _is_full_precision, 3.0),
    "groups": ("grouped_convolutions", lambda op: True, 4.0),
    "sequences": ("convolutions", _is_sequence, 2.0),
    "dense gradients": ("lookups", lambda op: op.name == "aten::embedding_dense_backward", 2.0),
    "places": ("indexing", lambda op: op.name.startswith(("aten::gather", "aten::scatter", "aten::_index_put")), 2.0),
    "experts": ("matrix", lambda op: op.name == "aten::_grouped_mm", 1.0),
    "few": ("matrix", _few, 1.0),
}
"""Kinds of calls: their family, how to tell them, and their share of the time."""


@dataclass(frozen=True)
class FocusedRange(CaseRange):
    """Cases of one kind, found among many more numbers than there are cases."""

    focus: str = ""

    def __iter__(self) -> Iterator[Any]:
        family, tells, _ = FOCUS[self.focus]
        numbers = range(self.first * SPREAD, self.last * SPREAD)
        drawn = (case_number(family, n, self.max_elements, self.kind, self.series + self.focus) for n in numbers)
        return islice((case for case in drawn if tells(case.op)), self.last - self.first)


def measure_focus(focus: str, out: Path, device: Any, seconds: float, series: str, workers: Workers) -> int:
    """Measure calls of a kind for some seconds; how many there are."""
    family = FOCUS[focus][0]
    path = out / f"{family}{SUFFIX}"
    machine = {**machine_facts(device), "series": series + focus}
    end, found = time.monotonic() + seconds, 0
    first = next_case_in(path, device_name(device)) if path.exists() else 0
    while time.monotonic() < end:
        cases = FocusedRange(family, first, first + BATCH, MAX_ELEMENTS[device.type], device.type, series, focus)
        if workers.ready and family in ("attention", "convolutions", "grouped_convolutions"):
            batches = list(workers.measure(path, cases, machine, until=end))
        else:
            batches = [measure_batch(path, cases, Batch(cases.first, cases.last, machine), device, end)]
        first = max([first + BATCH, *(batch.last for batch in batches)])
        found += sum(len(batch.measurements) for batch in batches)
    return found


def main() -> None:
    """Measure, and print how much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--only", nargs="*", default=[*FOCUS, *NEW], help="kinds, and families that are new")
    parser.add_argument("--on")
    given = parser.parse_args()
    device = find_device(given.on)
    kinds = [focus for focus in FOCUS if focus in given.only]
    new = {name: share for name, share in NEW.items() if name in given.only}
    whole = sum(new.values()) + sum(FOCUS[focus][2] for focus in kinds)
    planned = any(DRAWN[name].slow_to_plan for name in (*new, *(FOCUS[focus][0] for focus in kinds)))
    warm_up(device)
    with Workers(device, workers_for(device, 60 * given.minutes) if planned else 0) as workers:
        for series, part in (("", 1 - HELD_OUT_SHARE), (HELD_OUT, HELD_OUT_SHARE)):
            out = given.out / "heldout" if series else given.out
            out.mkdir(parents=True, exist_ok=True)
            minutes = given.minutes * part
            for focus in reversed(kinds):  # workers start meanwhile
                seconds = 60 * minutes * FOCUS[focus][2] / whole
                begun = time.monotonic()
                count = measure_focus(focus, out, device, seconds, series, workers)
                print(f"{series or 'to fit'} {focus}: {count} in {time.monotonic() - begun:.1f} s", flush=True)
            if not new:
                continue
            shares = sum(new.values()) / whole
            done = measure_families(
                out, device, minutes * shares, list(new), series=series, shares=new, workers=workers
            )
            for family in done:
                print(f"{series or 'to fit'} {family.family}: {family.cases}, {family.failed} failed {family.problem}",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    from benchmarks.truth.focused_calls import main as imported  # workers can't import `FocusedRange` from a script

    imported()
