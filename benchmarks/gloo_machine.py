"""One of several processes that calibrate the same CPUs at once; `benchmarks.gloo_truth` starts them.

    python -m benchmarks.gloo_machine WORLD OUT

sketches the first rank of each job of `benchmarks.gloo_jobs`, which never runs, and measures exactly its calls, then
the host. As many processes do so at once as the job has ranks: these share caches, memory and clock, and a call that is
timed alone is faster than one in a job.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.gloo_jobs import JOBS
from foretrace.calibrating import calibrate
from foretrace.record.sketch import sketch

CALLS_MINUTES, HOST_MINUTES = 0.12, 0.05
"""At most, for the calls of a job; and for the host."""


def main() -> int:
    world, out = int(sys.argv[1]), Path(sys.argv[2])
    for make in JOBS.values():
        calibrate(out, ("device",), CALLS_MINUTES, "cpu", like=sketch(make, world=world))
    calibrate(out, ("host",), HOST_MINUTES, "cpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
