"""Measures the kernels that TorchInductor generates for layers and models drawn at random, each alone on the device.

On a GPU, with Triton, ``timm``, ``torchvision`` and ``transformers``. Compiling takes most of the time, so that many
processes compile at once; one that has kernels to measure stops all others (SIGSTOP) meanwhile. A kernel is launched
with the tensors that its layer gave it, with a cold and with a warm cache.

    python -m benchmarks.truth.compiled_kernels OUT --seconds 400 [--workers 15] [--first 0]

writes ``OUT/compiled.jsonl.gz``, measurements to fit on, a batch for each group of layers; ``OUT/sources.jsonl.gz``,
the source of each kernel and how it was tuned, in the same order; and ``OUT/layers.txt``, what became of each layer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.lib import model_pool
from benchmarks.lib.alone import Machine
from benchmarks.lib.compiled_steps import of_pool
from benchmarks.lib.layer_pool import layer
from foretrace.calibration.timing.compiled_kernels import recorded_launches
from foretrace.calibration.timing.device import machine_facts
from foretrace.calibration.timing.kernels import fill_batch, reference_case
from foretrace.calibration.timing.timer import CompiledCase, is_fatal, time_cases
from foretrace.cost_models.kernels.families.compiled import COMPILED
from foretrace.graph import Op
from foretrace.graph.op import signature
from foretrace.platform.measurements.journal import append
from foretrace.platform.measurements.kernels import SUFFIX, Batch, close_batch, open_batch

SOURCES, LAYERS = f"sources{SUFFIX}", "layers.txt"
EVERY = 8
"""Each so many-th number is a whole model: it takes some eight times as long as a layer, and has as many kernels."""
MODEL_S, LAYER_S = 150.0, 25.0
"""Seconds that must be left for a model and for a layer to be begun."""
KERNELS, HELD_BYTES = 50, 4 * 2**30
"""Kernels that are measured in one go, and what they may hold of the device's memory before."""
WARM_UP = 100
"""GEMMs before a batch: the device's clock falls while all wait for the compiler."""
LIVES = 12
"""How often a worker is started again: a kernel that fails ends its process."""


@dataclass
class Launched:
    """A kernel of a step, ready to be launched again."""

    case: CompiledCase
    source: str
    how: dict[str, str]
    """How it was tuned."""


@contextmanager
def launches(autotuner: Any) -> Iterator[list[Launched]]:
    """The kernels that are launched meanwhile."""
    found: list[Launched] = []
    with recorded_launches(autotuner) as cases:
        launch = autotuner.run

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            result = launch(kernel, *args, **kwargs)
            chosen = kernel.launchers[0].config if getattr(kernel, "launchers", None) else None
            how = {"config": str(chosen), "hint": str(getattr(kernel, "reduction_hint", ""))}
            found.append(Launched(cases[-1], str(getattr(kernel.fn, "src", "")), how))
            return result

        with patch.object(autotuner, "run", run):
            yield found


def compiled_step(number: int, device: str) -> tuple[str, Callable[[], Any]]:
    """A layer, or a whole model, by number: what it is, and a step of it that is compiled."""
    if number % EVERY == 0:
        return model_pool.drawn(number // EVERY)[0], of_pool(number // EVERY, {})
    drawn = layer(number, device)
    drawn.function = torch.compile(drawn.function, dynamic=False)
    return drawn.name, drawn.step


def kernels_of(step: Callable[[], Any], autotuner: Any) -> dict[object, Launched]:
    """The distinct kernels of a step, which runs for the first times here."""
    for _ in range(2):  # the first time each kernel is tuned as well
        step()
    torch.cuda.synchronize()
    with launches(autotuner) as found:
        step()
    return {(each.source, signature(Op("", each.case.op.args))): each for each in found}


def measure(waiting: list[Launched], numbers: tuple[int, int], out: Path, machine: Machine, device: Any) -> None:
    """Time kernels with nothing else on the device, and write them."""
    batch = Batch(*numbers, {**machine_facts(device), "series": "layers"})
    with machine.alone():
        square = torch.ones(4096, 4096, dtype=torch.bfloat16, device=device)
        for _ in range(WARM_UP):
            square @ square
        fill_batch(batch, [each.case for each in waiting], device)
        path = out / f"{COMPILED}{SUFFIX}"
        open_batch(path, batch)
        close_batch(path, batch)
        sources = [{"name": each.case.op.name, "source": each.source, **each.how} for each in waiting]
        append(out / SOURCES, [{"from": batch.first, "to": batch.last, "kernels": sources}])


class Worker:
    """One of the processes that compile: it takes every so many-th number."""

    def __init__(self, place: int, of: int, out: Path, shared: Path) -> None:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        self._autotuner, self._out, self._of = CachingAutotuner, out, of
        self._device, self._machine = torch.device("cuda", 0), Machine(shared)
        self._state, self._place = shared / f"next-{place}", place
        self._waiting: dict[object, Launched] = {}
        self._since = -1
        """The first layer whose kernels wait to be measured."""

    def work(self, first: int, end: float) -> None:
        """Compile and measure until there is too little time left."""
        time_cases([reference_case(self._device)], self._device)  # the profiler's first start takes seconds
        number = int(self._state.read_text()) if self._state.exists() else first + self._place
        while time.time() < end - LAYER_S:
            if number % EVERY or time.time() < end - MODEL_S:
                self._state.write_text(str(number + self._of))  # one that ends this process is not tried again
                self._say(number, self._collect(number))
            number += self._of
            if len(self._waiting) >= KERNELS or torch.cuda.memory_allocated() > HELD_BYTES:
                self._measure(number)
        self._measure(number)

    def _collect(self, number: int) -> str:
        begun = time.monotonic()
        torch.compiler.reset()
        try:
            name, step = compiled_step(number, "cuda")
            found = kernels_of(step, self._autotuner)
        except Exception as error:  # layers at random: some can't be compiled
            if is_fatal(error):
                raise
            said = str(error).strip().splitlines() or [""]
            return f"left out: {type(error).__name__}: {said[0][:200]}"
        fresh = {key: each for key, each in found.items() if key not in self._waiting}
        self._waiting |= fresh
        self._since = number if self._since < 0 else self._since
        return f"{name}: {len(fresh)} kernels, {time.monotonic() - begun:.1f} s"

    def _measure(self, number: int) -> None:
        waiting, begun = list(self._waiting.values()), time.monotonic()
        if waiting:
            measure(waiting, (self._since, number), self._out, self._machine, self._device)
            self._say(number, f"measured {len(waiting)} in {time.monotonic() - begun:.2f} s")
        self._waiting, self._since = {}, -1
        torch.cuda.empty_cache()

    def _say(self, number: int, what: str) -> None:
        with (self._out / LAYERS).open("a") as file:
            file.write(f"{number} {what}\n")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--seconds", type=float, default=400.0)
    options.add_argument("--workers", type=int, default=15)
    options.add_argument("--first", type=int, default=0, help="the first number")
    options.add_argument("--worker", nargs=3, metavar=("PLACE", "SHARED", "END"), help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.worker:
        place, shared, end = chosen.worker
        Worker(int(place), chosen.workers, chosen.out, Path(shared)).work(chosen.first, float(end))
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    until, folder = time.time() + chosen.seconds, Path(mkdtemp())
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    again = [sys.executable, "-m", "benchmarks.truth.compiled_kernels", *sys.argv[1:], "--worker"]

    def start(place: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*again, str(place), str(folder), str(until)], env={**os.environ, **settings})

    machine = Machine(folder)
    machine.list_workers([])
    running = {place: start(place) for place in range(chosen.workers)}
    machine.list_workers(each.pid for each in running.values())
    lives = dict.fromkeys(running, LIVES)
    while time.time() < until and any(each.poll() is None for each in running.values()):
        time.sleep(0.5)
        for place, worker in list(running.items()):
            if worker.poll() and lives[place] and time.time() < until - 2 * LAYER_S:
                lives[place] -= 1
                with machine.alone():  # if it had stopped the others, they go on afterwards
                    pass
                running[place] = start(place)
                machine.list_workers(each.pid for each in running.values())
                with (chosen.out / LAYERS).open("a") as file:
                    file.write(f"worker {place} ended with {worker.returncode}\n")
    for worker in running.values():
        worker.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
