"""``python run.py``: build the inputs, run the step, say how long it took and how it compares with the original."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import comparison, measure, system, text
from .benchmark import Benchmark
from .job import Job, job_of, launch, merged, started
from .late import delays
from .together import leave, tell, together

WARM_UP = 4
FAILED, REFUSED = 1, 2


class NotToBeRunError(Exception):
    """A benchmark that was asked for something it does not have."""


def parser() -> argparse.ArgumentParser:
    """The options of ``run.py``."""
    options = argparse.ArgumentParser(description="Run this benchmark.")
    options.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options.add_argument("--iterations", type=_positive, help="steps to time; without it as many as fit in a second")
    options.add_argument("--device", choices=["cpu", "cuda", "meta"], help="run elsewhere than it was recorded")
    options.add_argument(
        "--pace",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="make no call sooner than the original's host came to it; without it, see what the device could do",
    )
    options.add_argument("--alone", type=int, metavar="RANK", help="of a job of several ranks, play this one alone")
    options.add_argument(
        "--counters", action="store_true", help="on a GPU also count its activity and traffic, with Nsight Compute"
    )
    options.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)  # what Nsight Compute runs
    options.add_argument("--delayed", action="store_true", help="collectives take as long as in the original")
    options.add_argument("--seed", type=int, default=0, help="of the inputs")
    options.add_argument("--top", type=_positive, default=10, help="rows of each table")
    return options


def _positive(value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise argparse.ArgumentTypeError(f"{value!r} is no count")
    return int(value)


def main(folder: Path) -> int:
    """Run the benchmark in a folder; 0 where it ran."""
    chosen = parser().parse_args()
    delays.wanted = chosen.delayed
    job = job_of(folder)
    if job and chosen.device == "meta" and chosen.alone is None:
        chosen.alone = 0  # what is nowhere can't be sent
    if job and chosen.alone is None and not started():
        return launch(sys.argv, job.world)
    try:
        benchmark = _benchmark(folder, job, chosen)
        if chosen.counted:
            system.counted_step(benchmark.step(paced=False), len(benchmark.source.numbers))
            return 0
        results = tell(run(benchmark, chosen.iterations, chosen.pace, chosen.counters))
    except (MemoryError, NotToBeRunError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return REFUSED
    except RuntimeError as error:  # what PyTorch says where the machine is at fault, or an input can't be made
        print(f"run.py: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return FAILED
    if together.rank == 0:
        result = merged(results)
        print(json.dumps(result, indent=1) if chosen.json else text.told(result, chosen.top))
    leave()
    return 0


def _benchmark(folder: Path, job: Job | None, chosen: argparse.Namespace) -> Benchmark:
    """The benchmark, or this process's rank of it."""
    if job is None:
        return Benchmark(folder, chosen.device, chosen.seed)
    rank = int(os.environ["RANK"]) if chosen.alone is None else chosen.alone
    if not 0 <= rank < job.world:
        raise NotToBeRunError(f"there is no rank {rank}: this benchmark has {job.world}, from 0 on")
    if chosen.alone is None and int(os.environ["WORLD_SIZE"]) != job.world:
        raise NotToBeRunError(f"this benchmark has {job.world} ranks, and {os.environ['WORLD_SIZE']} were started")
    groups = job.facts["groups"] if chosen.alone is None else None
    return Benchmark(folder, chosen.device, chosen.seed + rank, job.files(rank), groups)


def run(benchmark: Benchmark, iterations: int | None, paced: bool, counters: bool = False) -> dict[str, Any]:
    """Time a benchmark, and hold it against the original."""
    step = benchmark.step(paced)
    for _ in range(WARM_UP):
        step()
    if together.joined and iterations is None:  # ranks that stop at different steps would wait for each other
        iterations = tell(measure.enough(measure.synced_ms(step, WARM_UP)))[0]
    times = measure.synced_ms(step, iterations)
    typical, low, high = measure.spread(times)
    kernels = measure.kernels_of(step) if benchmark.device == "cuda" else []
    return {
        "device": torch.cuda.get_device_name() if benchmark.device == "cuda" else benchmark.device,
        "paced": paced,
        "iterations": len(times),
        "step_ms": typical,
        "low_ms": low,
        "high_ms": high,
        "step_ms_back_to_back": measure.back_to_back_ms(step, len(times)),
        "kernel_ms": sum(us for _, us in kernels) / 1e3 if kernels else None,
        "launches": len(kernels) if kernels else None,
        "peak_memory_bytes": measure.peak_memory(step, benchmark.inputs, benchmark.facts["threads"]),
        "system": _system(benchmark, step, counters),
        "kernels": comparison.compare_kernels(kernels, benchmark.original["kernels"]),
        **_coverage(benchmark),
        "original": {word: value for word, value in benchmark.original.items() if word != "kernels"},
        "notes": benchmark.notes,
    }


def _system(benchmark: Benchmark, step: Callable[[], Any], counters: bool) -> dict[str, Any] | None:
    """What the GPU does meanwhile; None on a CPU, and for ranks that could not tell when to stop."""
    if benchmark.device != "cuda" or together.joined:
        return None
    found: dict[str, Any] = system.power_and_clock(step, measure.wait)
    if counters:
        found |= system.counters([str(benchmark.folder / "run.py"), "--counted"])[0]
    return found


def _coverage(benchmark: Benchmark) -> dict[str, Any]:
    """What was called, what was not, and why."""
    facts = benchmark.facts
    return {
        "weights": comparison.weights(facts["calls"], facts["numbers"], benchmark.called),
        "ops": comparison.by_op(facts["calls"], facts["numbers"], benchmark.called),
        "failures": [vars(failure) for failure in benchmark.source.failures],
        "stand_ins": [
            {"call": facts["calls"][number]["name"], "why": facts["stand_ins"].get(str(number), "")}
            for number in benchmark.source.stand_ins
        ],
        "translated": dict(Counter(facts["calls"][number]["name"] for number in benchmark.source.translated)),
    }
