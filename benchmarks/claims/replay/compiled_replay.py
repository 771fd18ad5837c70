"""Claim: a recorded compiled step is replayed whole: all calls and device time covered, kernel time within 2 %, step
time within 5 %.

Reads what `benchmarks.truth.compiled_replay_truth` measured. Not part of the claim: ``memory off``, the replay's peak
memory over the original's; and ``losses``, whether the recorded job had those of a run without the recorder ("vary":
two runs without it differ as well; "differ": it was not run twice, or did not vary).

    python -m benchmarks.claims.replay.compiled_replay TRUTH
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.lib.table import H200, keep
from benchmarks.truth.compiled_replay_truth import RESULT

MEASURED_ON = H200
KERNEL_TIME, STEP_TIME = 0.02, 0.05


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    """How far a replay is off, and whether all of it holds."""
    was = found["original"]
    row: dict[str, Any] = {"job": found["job"], "mode": found["mode"]}
    row["losses"] = "same" if found["same_losses"] else "vary" if found["differs_alone"] else "differ"
    row |= {"calls": found["coverage"]["calls"], "device": found["coverage"]["device"]}
    row |= {"launches": found["launches"], "recorded": was["launches"], "step ms": was["step_ms"]}
    keys = {"kernels off": "kernel_ms", "step off": "step_ms", "memory off": "peak_memory_bytes"}
    row |= {name: found[key] / was[key] - 1 for name, key in keys.items()}
    covered = row["calls"] == row["device"] == 1.0
    row["holds"] = covered and abs(row["kernels off"]) <= KERNEL_TIME and abs(row["step off"]) <= STEP_TIME
    return row


def main(truth: str) -> int:
    found = [json.loads(line) for line in (Path(truth) / RESULT).read_text().splitlines()]
    rows = [row_of(each) for each in found if "failed" not in each]
    missed = [f"{each['job']}: no replay" for each in found if "failed" in each]
    missed += [f"{row['job']}: kernels {row['kernels off']:+.1%}, step {row['step off']:+.1%}" for row in rows
               if not row["holds"]]  # fmt: skip
    keep("compiled_replay", rows, verdict=f"Does not hold: {'; '.join(missed)}" if missed else None)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
