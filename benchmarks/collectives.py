"""Claim: collectives are met within 5 % (geometric mean) at message sizes that the fit has not seen.

On every published table of nccl-tests, curves are fitted on every other size and held against the sizes in between; the
range from the 10th to the 90th percentile must hold 70 % of them or more.

    python -m benchmarks.collectives [shared/public/nccl]
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from benchmarks.table import keep
from foretrace.costs.collectives import fit_curves, predict
from foretrace.platform.fabric import Fabric
from foretrace.platform.fabric_measurements import Exchange

TABLES = Path(__file__).resolve().parents[2] / "shared" / "public" / "nccl"
MOST, LEAST_INSIDE = 0.05, 0.7


def exchanges(folder: Path, entry: dict[str, str]) -> list[Exchange]:
    """The rows of one table."""
    lines = [line for line in (folder / entry["file"]).open() if not line.startswith("#")]
    kind, ranks, nodes = entry["collective"], int(entry["nranks"]), int(entry["nodes"])
    return [
        Exchange(kind, ranks, nodes, int(row["size_bytes"]), (float(row["time_us"]),)) for row in csv.DictReader(lines)
    ]


def score(name: str, seen: list[Exchange]) -> tuple[dict[str, object], list[float], list[bool]]:
    """A table's line, and the errors and hits of its sizes that were left out."""
    fabric = Fabric(name, fit_curves(seen[::2]), "every other size")
    misses, inside = [], []
    for kind, ranks, nodes, nbytes, (us,) in seen[1::2]:
        found = predict(fabric, kind, nbytes, ranks, nodes)
        misses.append(abs(found.typical / us - 1))
        inside.append(found.low <= us <= found.high)
    line = {"table": name, "sizes": len(misses), **errors(misses), "inside": float(np.mean(inside))}
    return line, misses, inside


def errors(misses: list[float]) -> dict[str, float]:
    geometric = float(np.exp(np.log(np.maximum(misses, 1e-4)).mean()))
    return {"gmae": geometric, "mean": float(np.mean(misses)), "p90": float(np.quantile(misses, 0.9))}


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TABLES
    rows, misses, inside = [], [], []
    for entry in csv.DictReader((folder / "INDEX.csv").open()):
        row, missed, held = score(entry["file"].removesuffix(".csv"), exchanges(folder, entry))
        rows.append(row)
        misses += missed
        inside += held
    whole = {"table": "all", "sizes": len(misses), **errors(misses), "inside": float(np.mean(inside))}
    whole["holds"] = whole["gmae"] < MOST and whole["inside"] >= LEAST_INSIDE
    keep("collectives", [whole, *rows])
    return int(not whole["holds"])


if __name__ == "__main__":
    sys.exit(main())
