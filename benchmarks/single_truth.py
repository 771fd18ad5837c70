"""Measures what `benchmarks.accuracy_single` is held to: real steps recorded on a GPU, its host calibrated meanwhile.

On a GPU, with ``transformers`` and ``torchvision``. Recordings take turns with rounds of the calibration: a host that
is slow for a while is slow for both. What is there already is left out, so that it can be stopped and gone on with.

    python -m benchmarks.single_truth OUT --minutes 6
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

import torch

from benchmarks.workloads import OTHERS, WORKLOADS
from foretrace.platform.measure.host import HostProgress, calibrate_host
from foretrace.record.session import record

IN_A_ROW = 1
"""Recordings between two rounds of the calibration."""


def recorded(name: str, out: Path) -> None:
    """Record one of the steps; one that can't run here is said and left out."""
    begun = time.monotonic()
    try:
        step = {**WORKLOADS, **OTHERS}[name]()
        record(step, out / name, plain=12, profile=2, warmup=4)
        said = f"{time.monotonic() - begun:.1f} s"
    except (RuntimeError, ImportError, ValueError, TypeError) as error:
        said = f"left out: {str(error).splitlines()[0][:120]}"
    print(name, said, flush=True)
    step = None
    gc.collect()
    torch.cuda.empty_cache()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=6.0)
    chosen = options.parse_args()
    recordings = chosen.out / "recordings"
    recordings.mkdir(parents=True, exist_ok=True)
    left = [name for name in (*WORKLOADS, *OTHERS) if not (recordings / name).exists()]

    def between(done: HostProgress) -> None:
        for _ in range(min(IN_A_ROW, len(left))):
            recorded(left.pop(0), recordings)
        print(f"host: {done.rounds} rounds, {done.seconds:.0f} s, spread {done.spread:.0%}", flush=True)

    calibrate_host(chosen.out, chosen.minutes, between)
    return 0


if __name__ == "__main__":
    sys.exit(main())
