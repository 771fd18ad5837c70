"""Times the calls of recorded steps one by one, each distinct call once: what ``calibrate --for`` does for one step.

The calls, and how the ids of lookups are spread, are the recordings'; their times are not looked at.

    python -m benchmarks.truth.exact_truth FOLDER --minutes 1.5        (what single_truth wrote)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from foretrace._progress import Progress
from foretrace.calibration.step_calls import measure_cases
from foretrace.calibration.timing.device import find_device
from foretrace.platform.measurements.cases import Case, case_key, recorded_cases
from foretrace.record import folder as files


def cases_of(recording: Path) -> Iterator[Case]:
    """The distinct calls of a recorded step."""
    rank = recording / "rank-0"
    ops = files.read_ops(rank)
    return iter(recorded_cases(ops, files.read_indices(rank, ops)))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--minutes", type=float, default=1.5)
    chosen = options.parse_args()
    recordings = sorted((chosen.folder / "recordings").glob("[!.]*"))
    distinct = {case_key(case): case for recording in recordings for case in cases_of(recording)}
    print(f"{len(distinct)} calls", flush=True)

    def report(progress: Progress) -> None:
        print(f"{progress.text}, {progress.done:.0f} s", flush=True)

    measure_cases(distinct.values(), chosen.folder, find_device(), chosen.minutes, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
