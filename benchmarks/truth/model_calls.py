"""Measures the calls of models drawn at random: what a family's own cases leave out, real models have.

    python -m benchmarks.truth.model_calls sketch CALLS --first 0 --last 400    (needs no GPU; goes on where it ended)
    python -m benchmarks.truth.model_calls measure CALLS OUT --minutes 4

``sketch`` writes the distinct calls of `benchmarks.lib.model_pool`'s models, a file a family. ``measure`` times them on
the device, in an order of its own, each family for its share of the time; calls that no family covers are timed where
``--only other`` asks for them. The calls of every ninth model go into ``heldout``, for models to be scored on.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.lib.model_pool import drawn
from foretrace.calibration.step_calls import step_cases
from foretrace.calibration.timing.device import device_name, find_device, machine_facts
from foretrace.calibration.timing.kernels import CaseRange, measure_batch, next_case_in, warm_up
from foretrace.calibration.timing.workers import Workers, workers_for
from foretrace.cost_models.kernels.families import DRAWN, family_of
from foretrace.platform.measurements.cases import Case, case_key
from foretrace.platform.measurements.kernels import (
    SUFFIX,
    Batch,
    Measurement,
    close_batch,
    open_batch,
    read_batches,
)
from foretrace.record.sketch.sketch import sketch

HELD_OUT = "heldout"
EVERY = 9
"""Each so many-th model's calls are held out."""
HELD_OUT_SHARE = 0.12
"""Of the time, for what is held out."""
SHARES = {
    "convolutions": 10.0, "grouped_convolutions": 8.0, "recurrent": 3.0, "fourier": 3.0, "linear_algebra": 2.0,
    "lookups": 2.0, "indexing": 2.0, "sorting": 2.0, "resampling": 2.0, "grid_sampling": 2.0, "matrix": 2.0,
}  # fmt: skip
"""Of the time, by family; 1 for the others: more where planning is slow or where models were far off."""
ROUND, PLANNED, ALONE = 128, 56, 8
"""Calls that are measured in a row; by each worker, where a library plans slowly; and of those that no family covers,
whose arguments may not fit each other: such a call may end the process."""
OTHER = "other"
"""Name of the file of calls that no family covers."""
MAX_BYTES = 2 * 2**30
"""Calls of larger tensors are left out."""


def write_calls(out: Path, first: int, last: int, other: bool = False, seconds: float = float("inf")) -> None:
    """Sketch models by number, and write their calls; models that were done before are left out.

    It ends early once the seconds are over.
    """
    end = time.monotonic() + seconds
    done = out / "models.txt"
    out.mkdir(parents=True, exist_ok=True)
    seen = {
        case_key(found.case) for path in out.rglob(f"*{SUFFIX}") for b in read_batches(path) for found in b.measurements
    }
    known = {int(line.split()[0]) for line in done.read_text().splitlines()} if done.exists() else set()
    for number in sorted(set(range(first, last)) - known):
        if time.monotonic() > end:
            break
        begun, (name, build) = time.monotonic(), drawn(number, other)
        try:
            cases = step_cases(sketch(build, device="cuda"), "cuda")
        except Exception as error:  # models at random: some can't be built as they are drawn
            said, fresh = f"{type(error).__name__}: {str(error)[:200]}".replace("\n", " "), []
        else:
            fresh = [case for case in cases.values() if case_key(case) not in seen and _fits(case)]
            fresh = list({case_key(case): case for case in fresh}.values())
            seen |= {case_key(case) for case in fresh}
            said = f"{len(fresh)} new calls"
        by_family: defaultdict[str, list[Measurement]] = defaultdict(list)
        for case in fresh:
            family = family_of(case.op)
            by_family[family.name if family else OTHER].append(Measurement(case))
        for family_name, found in by_family.items():
            folder = out / HELD_OUT if number % EVERY == 0 else out
            folder.mkdir(exist_ok=True)
            batch = Batch(number, number + 1, {"device": "sketched"}, found)
            open_batch(folder / f"{family_name}{SUFFIX}", batch)
            close_batch(folder / f"{family_name}{SUFFIX}", batch)
        line = f"{number} {name}: {said}, {time.monotonic() - begun:.1f} s"
        with done.open("a") as log:
            print(line, file=log)
        print(line, flush=True)


def _fits(case: Case) -> bool:
    return sum(tensor.nbytes for tensor in case.op.tensors) < MAX_BYTES


@cache
def calls_in(path: Path) -> list[Case]:
    """The distinct calls of a file, in an order that mixes its models; without those that are held out."""
    found = {case_key(one.case): one.case for batch in read_batches(path) for one in batch.measurements}
    held = path.parent / HELD_OUT / path.name
    for case in calls_in(held) if held.exists() else ():
        found.pop(case_key(case), None)
    shuffled = list(found.values())
    random.Random(7).shuffle(shuffled)
    return shuffled


@dataclass(frozen=True)
class WrittenCalls(CaseRange):
    """Calls by their places in a file."""

    path: Path = Path()

    def __iter__(self) -> Iterator[Case]:
        return islice(iter(calls_in(self.path)), self.first, self.last)


def measure_calls(
    calls: Path, out: Path, device: Any, minutes: float, workers: Workers, only: Collection[str] = ()
) -> None:
    """Time the calls of a folder's files until the time is up; each family goes on where it ended."""
    out.mkdir(parents=True, exist_ok=True)
    files = {path.name.removesuffix(SUFFIX): path for path in sorted(calls.glob(f"*{SUFFIX}"))}
    files = {name: path for name, path in files.items() if (name in only if only else name in DRAWN)}
    at = {name: next_case_in(out / path.name, device_name(device)) for name, path in files.items()}
    spent = dict.fromkeys(files, 0.0)
    counts, machine = dict.fromkeys(files, 0), machine_facts(device)
    end = time.monotonic() + 60 * minutes
    while (begun := time.monotonic()) < end:
        left = [name for name in files if at[name] < len(calls_in(files[name]))]
        if not left:
            break
        slow = [name for name in left if name in DRAWN and DRAWN[name].slow_to_plan]
        usable = left if workers.ready or not workers.workers else [name for name in left if name not in slow] or left
        name = min(usable, key=lambda name: spent[name] / SHARES.get(name, 1.0))
        planned = workers.ready and name in slow
        length = PLANNED if planned else ALONE if name == OTHER else ROUND
        some = WrittenCalls(name, at[name], at[name] + length, 0, device.type, "models", files[name])
        path = out / files[name].name
        if planned:
            batches = list(workers.measure(path, some, machine, until=end))
        else:
            batches = [measure_batch(path, some, Batch(some.first, some.last, machine), device, end)]
        at[name] += length * len(batches)
        counts[name] += sum(len(batch.measurements) for batch in batches)
        spent[name] += time.monotonic() - begun
    for name, count in counts.items():
        print(f"{out.name} {name}: {count} of {len(calls_in(files[name]))} in {spent[name]:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sketch", "measure"))
    parser.add_argument("calls", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=400)
    parser.add_argument("--other", action="store_true", help="the models of benchmarks.lib.model_kinds")
    parser.add_argument("--only", nargs="*", default=[], help="families; all where none is named")
    parser.add_argument("--minutes", type=float, default=4.0, help="of measuring")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of sketching")
    parser.add_argument("--on")
    given = parser.parse_args()
    if given.what == "sketch":
        warnings.simplefilter("ignore")
        write_calls(given.calls, given.first, given.last, given.other, given.seconds)
        return 0
    device = find_device(given.on)
    warm_up(device)
    with Workers(device, 0 if given.only == [OTHER] else workers_for(device, 60 * given.minutes)) as workers:
        for part, share in (("", 1 - HELD_OUT_SHARE), (HELD_OUT, HELD_OUT_SHARE)):
            measure_calls(given.calls / part, given.out / part, device, share * given.minutes, workers, given.only)
    return 0


if __name__ == "__main__":
    from benchmarks.truth.model_calls import main as imported  # workers can't import `WrittenCalls` from a script

    sys.exit(imported())
