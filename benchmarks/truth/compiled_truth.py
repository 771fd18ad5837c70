"""Measures what `benchmarks.claims.accuracy.compiled` is held to: compiled steps recorded on a GPU, eager ones beside
them, its host calibrated meanwhile.

On a GPU, with Triton, ``timm``, ``torchvision`` and ``transformers``. Compiling takes minutes on one processor, so that
many processes build and compile steps at once. One that is ready to measure stops all others (SIGSTOP) until it is
done, and so does each round of the host's calibration; all of them are timed on the same processors.

    python -m benchmarks.truth.compiled_truth OUT --seconds 540 [--workers 14] [STEP …]

writes ``OUT/recordings/STEP.MODE``, ``OUT/host.jsonl.gz`` and ``OUT/beside.jsonl`` (synced steps again, memory, seconds
to compile).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from benchmarks.lib.alone import Machine
from benchmarks.lib.compiled_steps import MODES, STEPS, modes_of
from benchmarks.truth.single_truth import BESIDE, drain, host_ms, others_bytes, synced_ms
from foretrace._progress import Progress
from foretrace.calibration.host.measure import measure_host
from foretrace.record.watch.session import record_step

TRIES = 3
"""How often a step is tried: others may hold too much of the device's memory."""
BETWEEN_S = 45.0
"""Seconds between two rounds of the host's calibration."""
LATER, LATER_S = 2, 5.0
"""How often a step is timed again, and seconds before each."""


class TimeIsUpError(Exception):
    """The calibration may end."""


def measured(name: str, mode: str, out: Path, machine: Machine) -> str:
    """Record a step in one mode; what could not be done is said."""
    folder = out / "recordings" / f"{name}.{mode}"
    if folder.exists():
        return "is there"
    torch.manual_seed(0)
    torch.compiler.reset()
    others = others_bytes()
    begin = time.perf_counter()
    step = STEPS[name](MODES[mode])
    for _ in range(3):
        step()
    drain()
    seconds = time.perf_counter() - begin
    with machine.alone():
        for _ in range(2):
            step()
        torch.cuda.reset_peak_memory_stats()
        record_step(step, folder, plain=12, profile=2, warmup=4)
        again = [synced_ms(step)]
        warm = [host_ms(step) for _ in range(6)][1:]
        memory = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    for _ in range(LATER):  # the host is faster at one time than at another
        time.sleep(LATER_S)
        with machine.alone():
            step()
            again.append(synced_ms(step))
    row = {"step": f"{name}.{mode}", "others_bytes": others, "synced_ms": again, "warm_ms": warm, **memory}
    with (out / BESIDE).open("a") as file:
        file.write(json.dumps({**row, "seconds": round(seconds, 1)}) + "\n")
    return f"{seconds:.0f} s"


def work(tasks: list[str], out: Path) -> None:
    """Take tasks until none is left; each worker has the same list, and claims by a file."""
    machine = Machine(out)
    for task in tasks:
        try:
            (out / "claims" / task).touch(exist_ok=False)
        except FileExistsError:
            continue
        for mode in modes_of(task):
            said = "out of memory"
            for _ in range(TRIES):
                try:
                    said = measured(task, mode, out, machine)
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    time.sleep(20)
                    continue
                except Exception as error:  # whatever a model's code raises: the other steps are measured still
                    said = f"left out: {type(error).__name__}: {str(error)[:200]}"
                break
            print(task, mode, said, flush=True)
            torch.cuda.empty_cache()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("steps", nargs="*")
    options.add_argument("--seconds", type=float, default=540.0)
    options.add_argument("--workers", type=int, default=14)
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_intermixed_args()
    out: Path = chosen.out
    if chosen.worker:
        work(chosen.steps or list(STEPS), out)
        return 0
    end = time.monotonic() + chosen.seconds
    for each in ("claims", "recordings"):
        (out / each).mkdir(parents=True, exist_ok=True)
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    again = [sys.executable, "-m", "benchmarks.truth.compiled_truth", *sys.argv[1:], "--worker"]
    machine = Machine(out)
    machine.list_workers([])
    workers: list[subprocess.Popen[bytes]] = []

    def between(progress: Progress) -> None:
        if not workers:
            workers.extend(subprocess.Popen(again, env={**os.environ, **settings}) for _ in range(chosen.workers))
            machine.list_workers(each.pid for each in workers)
        machine.leave()
        print(f"{progress.text}, {progress.done:.0f} s", flush=True)
        until = min(end, time.monotonic() + BETWEEN_S)
        while time.monotonic() < until and any(each.poll() is None for each in workers):
            time.sleep(0.5)
        if time.monotonic() >= end - 2 or all(each.poll() is not None for each in workers):
            raise TimeIsUpError
        machine.take()

    machine.take()
    with suppress(TimeIsUpError):
        measure_host(out, 60.0, between)
    for worker in workers:
        worker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
