"""Claim: a profiler trace of 500 MB is read in under 10 s and 1 GB, and shown in under 10 s and 1 GB, on two cores.

The trace is synthetic: one step of forward and backward calls with shapes, launches, kernels and flows, 1.6 million
events. That it is a single step makes it hard: all of it is analysed. Memory is that of the process and its children
together.

    python -m benchmarks.claims.speed.large_trace
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.lib.process import FORETRACE, medians, peak_mb, use_two_cores
from benchmarks.lib.synthetic import write_trace
from benchmarks.lib.table import keep

RUNS = 3
MEGABYTES = 500
SECONDS, MOST_MB = 10.0, 1000.0
TRACE = Path(__file__).resolve().parents[3] / "build" / f"synthetic-{MEGABYTES}mb.json"

READ = """
import sys
from foretrace.formats.kineto import read_kineto
graph = read_kineto(sys.argv[1])
assert len(graph.ops) and len(graph.kernels)
"""


def main() -> int:
    if not TRACE.exists():
        write_trace(TRACE, MEGABYTES, steps=1)
    use_two_cores()
    commands = {
        "read_kineto": [sys.executable, "-c", READ, str(TRACE)],
        "foretrace show --json": [FORETRACE, "show", str(TRACE), "--json"],
    }
    took, rows = medians(commands, RUNS), []
    for name, command in commands.items():
        mb = peak_mb(command)
        holds = took[name] < SECONDS and mb < MOST_MB
        rows.append({"what": name, "process s": round(took[name], 2), "peak MB": round(mb), "holds": holds})
    keep("large_trace", rows)
    return int(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
