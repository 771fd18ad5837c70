"""Measures what `benchmarks.claims.accuracy.compiled` is held to: compiled steps recorded on a GPU, eager ones beside
them, its host calibrated meanwhile; and kernels of random compiled models.

On a GPU, with Triton, ``timm``, ``torchvision`` and ``transformers``. Compiling takes minutes on one processor, so that
many processes build and compile steps at once. One that is ready to measure stops all others (SIGSTOP) until it is
done, and so does each round of the host's calibration; all of them are timed on the same processors.

    python -m benchmarks.truth.compiled_truth OUT --seconds 540 [--workers 14] [--pool 0:60] [STEP …]

writes ``OUT/recordings/STEP.MODE``, ``OUT/pool/SEED.compiled`` (recordings of random models), ``OUT/host.jsonl.gz``,
``OUT/beside.jsonl`` (synced steps again, memory, seconds to compile) and ``OUT/kernels.jsonl`` (the source of each
kernel that TorchInductor generated, and how it was tuned).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.compiled_steps import COMPILED, EAGER, MODES, STEPS, modes_of, of_pool
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
TIMED_ON = range(4, 8)
"""Processors for all that is timed, the calibration as the steps: some have busier neighbours than others."""
META = ("num_load", "num_store", "num_reduction", "grid_type", "mutated_arg_names", "atomic_add_found", "no_x_dim")


class TimeIsUpError(Exception):
    """The calibration may end."""


class Machine:
    """The processes that share the GPU: any may ask for it alone."""

    def __init__(self, out: Path) -> None:
        self._lock = (out / "alone.lock").open("a")
        self._workers = out / "workers"
        self._others: list[int] = []

    def take(self) -> None:
        """Stop all others."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._others = [int(line) for line in self._workers.read_text().split() if int(line) != os.getpid()]
        _send(self._others, signal.SIGSTOP)
        _stay_on(TIMED_ON)
        time.sleep(0.05)

    def leave(self) -> None:
        """Let the others go on."""
        _stay_on(range(os.cpu_count() or 1))
        _send(self._others, signal.SIGCONT)
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing else runs meanwhile."""
        self.take()
        try:
            yield
        finally:
            self.leave()


def _stay_on(processors: Iterable[int]) -> None:
    """Run all threads of this process on some processors, as far as the machine has them."""
    there = set(processors) & set(range(os.cpu_count() or 1)) or {0}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has just ended
            os.sched_setaffinity(int(thread.name), there)


def _send(processes: list[int], what: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, what)
        except ProcessLookupError:
            continue


@contextmanager
def kernels_into(path: Path, step: str) -> Iterator[None]:
    """Write down each kernel of TorchInductor that is launched meanwhile for the first time."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    seen: dict[str, dict[str, Any]] = {}
    launch = CachingAutotuner.run

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        result = launch(kernel, *args, **kwargs)
        name = str(kernel.inductor_meta.get("kernel_name", ""))
        if name not in seen:
            config = kernel.launchers[0].config if kernel.launchers else None
            seen[name] = {
                "step": step,
                "name": name,
                "source": getattr(kernel.fn, "src", ""),
                "hints": {str(key): value for key, value in (kernel.size_hints or {}).items()},
                "reduction_hint": str(getattr(kernel, "reduction_hint", "")),
                "heuristic": str(getattr(kernel, "heuristic_type", "")),
                "meta": {key: kernel.inductor_meta.get(key) for key in META},
                "config": str(config),
            }
        return result

    CachingAutotuner.run = run  # type: ignore[method-assign]
    try:
        yield
    finally:
        CachingAutotuner.run = launch  # type: ignore[method-assign]
        with path.open("a") as file:
            file.writelines(json.dumps(each, default=str) + "\n" for each in seen.values())


def measured(name: str, mode: str, out: Path, machine: Machine) -> str:
    """Record a step in one mode; what could not be done is said."""
    pool = name.isdecimal()
    folder = out / ("pool" if pool else "recordings") / f"{name}.{mode}"
    if folder.exists():
        return "is there"
    torch.manual_seed(0)
    torch.compiler.reset()
    others = others_bytes()
    begin = time.perf_counter()
    step = of_pool(int(name), MODES[mode]) if pool else STEPS[name](MODES[mode])
    for _ in range(3):
        step()
    drain()
    seconds = time.perf_counter() - begin
    with machine.alone():
        for _ in range(2):
            step()
        torch.cuda.reset_peak_memory_stats()
        if pool:
            record_step(step, folder, plain=3, profile=2, warmup=1)
        else:
            record_step(step, folder, plain=12, profile=2, warmup=4)
        again: list[list[float]] = [] if pool else [synced_ms(step)]
        warm = [] if pool else [host_ms(step) for _ in range(6)][1:]
        memory = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    for _ in range(0 if pool else LATER):  # the host is faster at one time than at another
        time.sleep(LATER_S)
        with machine.alone():
            step()
            again.append(synced_ms(step))
    if mode != EAGER:
        with kernels_into(out / "kernels.jsonl", f"{name}.{mode}"):
            step()
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
        for mode in [COMPILED] if task.isdecimal() else modes_of(task):
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
    options.add_argument("--pool", default="0:0", help="numbers of random models, FIRST:LAST")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_intermixed_args()
    out: Path = chosen.out
    first, last = map(int, chosen.pool.split(":"))
    tasks = [*(chosen.steps or STEPS), *map(str, range(first, last))]
    if chosen.worker:
        work(tasks, out)
        return 0
    end = time.monotonic() + chosen.seconds
    for each in ("claims", "recordings", "pool"):
        (out / each).mkdir(parents=True, exist_ok=True)
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    again = [sys.executable, "-m", "benchmarks.truth.compiled_truth", *sys.argv[1:], "--worker"]
    (out / "workers").write_text("")
    machine = Machine(out)
    workers: list[subprocess.Popen[bytes]] = []

    def between(progress: Progress) -> None:
        if not workers:
            workers.extend(subprocess.Popen(again, env={**os.environ, **settings}) for _ in range(chosen.workers))
            (out / "workers").write_text("\n".join(str(each.pid) for each in workers))
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
