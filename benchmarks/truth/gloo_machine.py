"""One of several processes that calibrate the same CPUs at once; `benchmarks.truth.gloo_truth` starts as many as a job
has ranks, since these share caches, memory and clock, and a call that is timed alone is faster than one in a job. It
makes sketches of the first rank of each job of `benchmarks.truth.gloo_jobs`, which never runs here, and is told

- ``device``: describe it;
- ``host``: measure the host;
- ``around``: measure once more what Python around calls costs it;
- ``calls JOB``: time exactly the calls of a job's sketch.

    python -m benchmarks.truth.gloo_machine WORLD PLATFORM
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.truth.gloo_jobs import JOBS
from benchmarks.truth.gloo_turns import turns
from foretrace.calibration.host.measure import measure_around_calls
from foretrace.calibration.machine import Outcome, calibrate, measure_device, measure_step_calls
from foretrace.calibration.timing.device import find_device
from foretrace.platform.platform import RAW
from foretrace.record.sketch.sketch import sketch

HOST_MINUTES = 0.05
CALLS_SECONDS = 2.0
ON = "cpu"


def main() -> int:
    world, out = int(sys.argv[1]), Path(sys.argv[2])
    graphs = {name: sketch(make, world=world) for name, make in JOBS.items()}
    for what, *which in turns():
        if what == "host":
            calibrate(out, ("host",), HOST_MINUTES, ON)
        elif what == "device":
            measure_device(out / RAW, ON, Outcome(), on_progress=lambda progress: None)
        elif what == "around":
            measure_around_calls(out / RAW, find_device(ON))
        elif what == "calls":
            measure_step_calls(
                out / RAW, ON, CALLS_SECONDS, graphs[which[0]], Outcome(), on_progress=lambda progress: None
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
