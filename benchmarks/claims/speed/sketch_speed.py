"""Claim: a transformer of 60 billion parameters, forward, backward and AdamW, is sketched in under 20 s and 1 GB; the
same under FSDP2 as one rank of a pretended world of 64 in under 60 s and 1 GB.

The model is the GPT of the examples with 74 layers of width 8192 and a batch of one text of 2048 words. Each case runs
in a process of its own; its time is that of the whole process, the import of torch included.

    python -m benchmarks.claims.speed.sketch_speed
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.lib.process import output
from benchmarks.lib.table import keep

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "on one device": ({}, {}, 20.0),
    "as one GPU would see it": ({"device": "cuda"}, {"device": "cuda"}, 20.0),
    "FSDP2, rank 0 of 64": ({"fsdp": True}, {"world": 64}, 60.0),
}
"""Options of the example, those of the sketch, and the seconds it may take."""
MOST_MB = 1000.0


def sketch_one(case: str) -> dict[str, Any]:
    """Sketch in this process: what came out, and what it took."""
    began = time.perf_counter()
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
    import gpt
    from foretrace import sketch

    gpt.PRESETS["60b"] = gpt.Shape(layers=74, heads=64, dim=8192, vocabulary=50257, seq=2048, batch=1)
    options, pretended, _ = CASES[case]
    graph = sketch(lambda: gpt.make_step(preset="60b", **options), **pretended)
    return {
        "calls": len(graph.ops),
        "collectives": int(graph.ops.names.matching(_is_collective)[graph.ops.name].sum()),
        "sketch s": round(time.perf_counter() - began, 2),
        "peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    }


def _is_collective(name: str) -> bool:
    return name.startswith("c10d::") and name != "c10d::wait"


def main() -> int:
    if len(sys.argv) > 1:
        print(json.dumps(sketch_one(sys.argv[1])))
        return 0
    rows = []
    for case, (_, _, limit) in CASES.items():
        began = time.perf_counter()
        found = json.loads(
            output([sys.executable, "-m", "benchmarks.claims.speed.sketch_speed", case]).splitlines()[-1]
        )
        took = time.perf_counter() - began
        holds = took < limit and found["peak MB"] < MOST_MB
        rows.append({"case": case, **found, "process s": round(took, 2), "limit s": limit, "holds": holds})
        keep("sketch_speed", rows)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
