"""Claim: `foretrace record` harms no compiled job. Jobs that compile their model (by default, with reduce-overhead,
layer by layer, with graph breaks), the optimizer's step or the whole step, and one whose optimizer compiles parts of
its own update as SOAP does, are recorded again and again: none dies, none differs in its losses, every recording can
be read and has the graphs of its programs.

``vary`` says whether runs without the recorder differ from each other as well: kernels are chosen by timing them. Only
then a loss may be off by a rounding of float32; ``off`` is how far it is at most.

Jobs of the optimizer's step and of the whole step were run again after a first run in which the recorder ended all of
them: it could not read kernels that update many tensors.

    python -m benchmarks.claims.usability.compiled_jobs FOLDER      (what benchmarks.truth.recorded_jobs wrote)
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.lib.table import H200, keep
from benchmarks.truth.recorded_jobs import RESULT

MEASURED_ON = H200
ROUNDING = 2.0**-23
"""A float32 and the next one differ by so much at most, as a share of them."""
HARM = ("died", "other_losses", "unreadable", "without_graphs")


def off(losses: str, others: str) -> float:
    """The largest relative difference between two runs' losses; infinite where there are none.

    >>> off("[1.0, 2.0]", "[1.0, 2.5]"), off("", "[1.0]")
    (0.25, inf)
    """
    try:
        pairs = list(zip(json.loads(losses), json.loads(others), strict=True))
    except ValueError:
        return float("inf")
    return max((abs(b - a) / abs(a) for a, b in pairs), default=0.0)


def outcome(kind: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of one kind of job."""
    alone = [run["losses"] for run in runs if run.get("alone")]
    recorded = [run for run in runs if not run.get("alone")]
    vary = len(set(alone)) > 1
    differences = [min(off(each, run["losses"]) for each in alone) for run in recorded if run["exit"] == 0]
    return {
        "job": kind,
        "runs": len(recorded),
        "vary": vary,
        "off": max(differences, default=0.0),
        "died": sum(run["exit"] != 0 for run in recorded),
        "other_losses": sum(each > ROUNDING * vary for each in differences),
        "unreadable": sum(not run["readable"] for run in recorded),
        "without_graphs": sum(not run.get("programs") or bool(run["failed_programs"]) for run in recorded),
        "programs": max((run.get("programs", 0) for run in recorded), default=0),
    }


def main() -> int:
    """Count what was recorded."""
    kinds: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in (Path(sys.argv[1]) / RESULT).read_text().splitlines():
        run = json.loads(line)
        kinds[run["kind"]].append(run)
    rows = [outcome(kind, runs) for kind, runs in kinds.items()]
    harmed = sum(row[name] for row in rows for name in HARM)
    keep(
        "compiled_jobs",
        rows,
        verdict=f"{harmed} recordings of compiled jobs do harm, or can't be read" if harmed else None,
    )
    return 1 if harmed else 0


if __name__ == "__main__":
    sys.exit(main())
