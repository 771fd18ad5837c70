"""Measures what `benchmarks.claims.accuracy.accuracy_single` is held to: real steps recorded on a GPU, its host
calibrated meanwhile.

On a GPU, with ``transformers`` and ``torchvision``. Recordings take turns with rounds of the calibration: a host that
is slow for a while is slow for both. What is there already is left out, so that it can be stopped and gone on with.

    python -m benchmarks.truth.single_truth OUT --minutes 6 [--zoo]

writes ``OUT/recordings``, ``OUT/host.jsonl.gz`` (the calibration) and ``OUT/beside.jsonl`` (synced steps again, some
time apart, since a host's speed changes within seconds; how long the host alone took for a step; how many bytes of the
device were others' before the step was built). It ends when every step is recorded.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.lib.workloads import ALL, Step, built
from benchmarks.lib.zoo import ZOO
from foretrace._progress import Progress
from foretrace.calibration.host.measure import measure_host
from foretrace.record.watch.session import record_step

STEPS = {**ALL, **ZOO}
IN_A_ROW = {False: 2, True: 8}
"""Recordings between two rounds of the calibration; of the zoo, where time is short, more."""
TURNS = {False: 5, True: 2}
"""How often synced steps are timed again."""
APART_S = 0.3
"""Seconds between."""
BESIDE = "beside.jsonl"


class NothingLeftError(Exception):
    """Every step is recorded: the calibration may end."""


def host_ms(step: Step) -> float:
    """How long the host takes for a step, whatever the device has still to do."""
    began = time.perf_counter_ns()
    step()
    taken = (time.perf_counter_ns() - began) / 1e6
    drain()
    return round(taken, 4)


def synced_ms(step: Step) -> list[float]:
    """How long synced steps take, some in a row."""
    time.sleep(APART_S)
    step()
    drain()
    taken = []
    for _ in range(6):
        began = time.perf_counter_ns()
        step()
        drain()
        taken.append(round((time.perf_counter_ns() - began) / 1e6, 4))
    return taken[1:]


def drain() -> None:
    """Wait until the device is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def others_bytes() -> int:
    """Bytes that others hold on the device; what libraries keep is let go, so that each step pays for its own."""
    if not torch.cuda.is_available():
        return 0
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def recorded(name: str, out: Path, turns: int) -> None:
    """Record one of the steps; one that can't run here is said and left out."""
    begun, others = time.monotonic(), others_bytes()
    try:
        step = built(STEPS[name])
        record_step(step, out / "recordings" / name, plain=12, profile=2, warmup=4)
        times = {"warm_ms": [host_ms(step) for _ in range(6)][1:], "synced_ms": [synced_ms(step) for _ in range(turns)]}
        with (out / BESIDE).open("a") as file:
            file.write(json.dumps({"step": name, "others_bytes": others, **times}) + "\n")
        said = f"{time.monotonic() - begun:.1f} s"
    except Exception as error:  # whatever a model's code raises: the other steps are recorded still
        said = f"left out: {type(error).__name__}: {str(error)[:120]}"
    print(name, said, flush=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("steps", nargs="*")
    options.add_argument("--minutes", type=float, default=6.0)
    options.add_argument("--zoo", action="store_true", help="the steps of benchmarks.lib.zoo")
    chosen = options.parse_intermixed_args()
    steps = chosen.steps or list(ZOO if chosen.zoo else ALL)
    (chosen.out / "recordings").mkdir(parents=True, exist_ok=True)
    left = [name for name in steps if not (chosen.out / "recordings" / name).exists()]

    def between(progress: Progress) -> None:
        for _ in range(min(IN_A_ROW[chosen.zoo], len(left))):
            recorded(left.pop(0), chosen.out, TURNS[chosen.zoo])
        print(f"{progress.text}, {progress.done:.0f} s", flush=True)
        if not left:
            raise NothingLeftError

    try:
        measure_host(chosen.out, chosen.minutes, between)
    except NothingLeftError:
        return 0
    print(f"not recorded: {', '.join(left)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
