"""Claim: slowdowns of two published jobs are those of their authors within 1 %: S, S_w, M_W and M_S.

Jobs of 64 and of 8 GPUs, 44 and 32 steps, with the results that the authors of the method published beside the span
logs (StragglerAnalysis). S is the slowdown of the job, S_w of each worker, M_W and M_S what goes away of it with the
slowest workers and with the last stage.

    python -m benchmarks.claims.fleet.fleet_stragglers
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.lib.fleet import SHARED
from benchmarks.lib.table import keep
from foretrace.fleet.stragglers import find_stragglers

LIMIT = 0.01
FOLDER = SHARED / "public/stragglers"


def main() -> int:
    logs = sorted(FOLDER.glob("trace-*.parquet"))
    if not logs:
        print(f"no span logs at {FOLDER}")
        return 0
    rows = [row for log in logs for row in compared(log)]
    keep("fleet_stragglers", rows)
    return int(any(row["error"] > LIMIT for row in rows))


def compared(log: Path) -> list[dict[str, Any]]:
    job = log.stem.removeprefix("trace-")
    result, workers, stage = (
        json.loads((FOLDER / f"{kind}-{job}.json").read_text()) for kind in ("result", "mw", "ms")
    )
    began = time.perf_counter()
    ours = find_stragglers(log)
    took = time.perf_counter() - began
    by_rank, by_stage = (
        {int(key.partition(",")[0]): value for key, value in result[f"blocking_decompose_by_{name}"].items()}
        for name in ("dp_rank", "stage")
    )
    pairs = [
        ("S", ours.slowdown, result["blocking_slowdown"]),
        *((f"S_w of rank {row.rank}", row.slowdown, min(by_rank[row.dp_rank], by_stage[row.stage]))
          for row in ours.by_worker[:3]),
        ("S_w, largest error of all workers", *max(
            ((row.slowdown, min(by_rank[row.dp_rank], by_stage[row.stage])) for row in ours.by_worker),
            key=lambda pair: abs(pair[0] / pair[1] - 1),
        )),
        ("M_W", ours.without_workers, workers["Mw"]),
        ("M_S", ours.without_last_stage, stage["Ms"]),
    ]  # fmt: skip
    return [
        {"job": job, "figure": name, "ours": mine, "authors": theirs, "error": abs(mine / theirs - 1), "seconds": took}
        for name, mine, theirs in pairs
    ]


if __name__ == "__main__":
    sys.exit(main())
