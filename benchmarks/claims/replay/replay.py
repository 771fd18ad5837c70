"""Claim: a replay is its original.

All device time covered; the same kernels for 99 % of it; kernel time within 1 %, that of lookups within 3 %; step time
within 2 % where the device is what it waits for and 5 % where it is the host (geometric means, no step over 10 %); peak
memory within 2 %.

Reads what `benchmarks.truth.replay_truth` measured on an H200, original and replay in turns; ``step off`` compares each
turn with the one beside it. ``again`` is how far the original was then off from its own recording, made minutes before
in another process: what a host that others use does by itself. So the pace is that of plain steps timed a second or two
before the turns.

    python -m benchmarks.claims.replay.replay TRUTH
"""

from __future__ import annotations

import argparse
import json
import sys
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.lib.table import H200, RESULTS, keep

MEASURED_ON = H200
HOST_BOUND = 0.8
"""A step whose kernels take less of it than that waits for its host."""
KERNELS_SAME, KERNEL_TIME, LOOKUP_TIME, MEMORY = 0.99, 0.01, 0.03, 0.02
LOOKUPS = ("embedding", "gather", "index")
"""Parts of the names of kernels that read and write rows by their numbers."""
DEVICE_STEP, HOST_STEP, WORST_STEP = 0.02, 0.05, 0.10


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    """How far a replay is off."""
    step, kernel, memory = found["step_ms"], found["kernel_ms"], found["peak_memory_bytes"]
    busy = kernel["original"] / step["original"]
    return {
        "workload": found["workload"],
        "bound": "host" if busy < HOST_BOUND else "device",
        "covered": found["coverage"]["device"],
        "same kernels": same(found["kernels"]["unpaced"], found["kernels"]["original"]),
        "kernels off": off(kernel["unpaced"], kernel["original"]),
        "lookups off": off(lookups_ms(found["kernels"]["unpaced"]), lookups_ms(found["kernels"]["original"])),
        "step ms": step["original"],
        "step off": beside(found["turns_ms"]),
        "again": off(step["original"], found["recorded"]["step_ms"]),
        "unpaced off": off(step["unpaced"], step["original"]),
        "memory off": off(memory["replay"], memory["original"]),
        "failed": len(found["failures"]),
    }


def beside(turns_ms: dict[str, list[list[float]]]) -> float:
    """By which share the paced replay is off from the original in the turn just before it, the middle one of them all:
    the host's speed changes from one second to the next, so that only neighbours can be compared."""
    pairs = zip(turns_ms["paced"], turns_ms["original"], strict=True)
    return median(median(paced) / median(original) for paced, original in pairs) - 1


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What each stage of the truth found, of each workload, as one; ``counted`` is there where it was counted."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        workload, _, stage = path.stem.rpartition(".")
        words = json.loads(path.read_text())
        found.setdefault(workload, {"workload": workload}).update({stage: words} if stage == "counted" else words)
    return {workload: words for workload, words in found.items() if "step_ms" in words and "kernels" in words}


def same(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> float | None:
    """The share of the original's device time in kernels that are there by the same name, as often."""
    total = sum(ms for _, ms in theirs.values())
    there = sum(ms * min(1.0, ours[name][0] / count) for name, (count, ms) in theirs.items() if name in ours)
    return there / total if total else None


def lookups_ms(kernels: dict[str, list[float]]) -> float:
    """Time of the kernels that look up rows, or change them."""
    return sum(ms for name, (_, ms) in kernels.items() if any(part in name.lower() for part in LOOKUPS))


def off(ours: float | None, theirs: float | None) -> float | None:
    """By which share the first is off from the second."""
    return ours / theirs - 1 if ours is not None and theirs else None


def geomean(offs: list[float]) -> float:
    """Geometric mean of how far figures are off, as factors."""
    return exp(mean(abs(log(1 + value)) for value in offs)) - 1 if offs else 0.0


def problems(rows: list[dict[str, Any]]) -> list[str]:
    """What of the claim does not hold."""
    found = []
    for row in rows:
        name = row["workload"]
        if row["covered"] != 1.0:
            found.append(f"{name}: {row['covered']} of the device time covered")
        if (row["same kernels"] or 0.0) < KERNELS_SAME:
            found.append(f"{name}: {row['same kernels']} of the kernels are the same")
        if abs(row["lookups off"] or 0.0) > LOOKUP_TIME:  # None where there are none
            found.append(f"{name}: lookups off by {row['lookups off']}")
        for word, most in (("kernels off", KERNEL_TIME), ("step off", WORST_STEP), ("memory off", MEMORY)):
            if row[word] is None or abs(row[word]) > most:
                found.append(f"{name}: {word} by {row[word]}")
    for bound, most in (("device", DEVICE_STEP), ("host", HOST_STEP)):
        typical = geomean([row["step off"] for row in rows if row["bound"] == bound])
        if typical > most:
            found.append(f"steps that wait for the {bound} are off by {typical:.1%} (geometric mean)")
    return found


def asked(about: str | None) -> tuple[dict[str, dict[str, Any]], Path]:
    """What is on the command line: the truth, read, and where results go."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("truth", type=Path, help="what replay_truth wrote")
    options.add_argument("--out", type=Path, default=RESULTS)
    chosen = options.parse_args()
    return read(chosen.truth / "results"), chosen.out


def main() -> int:
    found, out = asked(__doc__)
    rows = [row_of(words) for words in found.values()]
    keep("replay", rows, out)
    failed = problems(rows)
    for problem in failed:
        print(problem, file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
