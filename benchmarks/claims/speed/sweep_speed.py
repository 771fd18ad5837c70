"""Claim: a sweep of 200 batches over the trace or recording of a BERT step takes under 30 s on two cores.

The whole command is timed, the start of its processes included.

    python -m benchmarks.claims.speed.sweep_speed path/to/bert_base_b64_s512_bf16
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.lib.process import output
from benchmarks.lib.table import keep

MOST_S, POINTS, WORKERS = 30.0, 200, 2


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    batches = ",".join(str(2 * number) for number in range(1, POINTS + 1))
    what = ["sweep", sys.argv[1], "--set", f"batch={batches}", "--workers", str(WORKERS), "--json"]
    began = time.perf_counter()
    words = json.loads(output([sys.executable, "-m", "foretrace", *what]))
    took = time.perf_counter() - began
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    failed = sum(point["error"] is not None for point in words["points"])
    row = {
        "step": Path(sys.argv[1]).name,
        "points": len(words["points"]),
        "failed": failed,
        "seconds": round(took, 1),
        "CPU seconds": round(spent.ru_utime + spent.ru_stime, 1),
    }
    keep("sweep_speed", [row])
    return 0 if took < MOST_S and not failed and row["points"] == POINTS else 1


if __name__ == "__main__":
    sys.exit(main())
