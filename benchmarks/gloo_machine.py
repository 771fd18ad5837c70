"""One of several processes that calibrate the same CPUs at once; `benchmarks.gloo_truth` starts them.

    python -m benchmarks.gloo_machine WORLD OUT SECONDS

measures the host; then it sketches the first rank of each job of `benchmarks.gloo_jobs`, which never runs, and measures
exactly its calls, all within so many seconds. As many processes do so at once as the job has ranks: these share caches,
memory and clock, and a call that is timed alone is faster than one in a job.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.gloo_jobs import JOBS
from foretrace.calibrating import calibrate
from foretrace.record.sketch import sketch

HOST_MINUTES = 0.05


def main() -> int:
    world, out, end = int(sys.argv[1]), Path(sys.argv[2]), time.monotonic() + float(sys.argv[3])
    calibrate(out, ("host",), HOST_MINUTES, "cpu")
    graphs = [sketch(make, world=world) for make in JOBS.values()]
    for number, graph in enumerate(graphs):
        share = max(end - time.monotonic(), 1.0) / (len(graphs) - number)
        calibrate(out, ("device",), share / 60, "cpu", like=graph)
    return 0


if __name__ == "__main__":
    sys.exit(main())
