"""``python run.py``: build the inputs, time the step, print how it compares with the original."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import MAX_SLOW_HOST
from .files import WRITE_AGAIN, BenchmarkError, install, summarize_error
from .launch import Job, end_with_parent, is_rank_process, launch, read_job

if TYPE_CHECKING:
    from .benchmark import Benchmark

FAILED, REFUSED, INTERRUPTED = 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The options of ``run.py``."""
    options = argparse.ArgumentParser(description="Run this benchmark.")
    options.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options.add_argument("--iterations", type=_positive, help="steps to time; as many as fit in a second by default")
    where = "device to run on, instead of the recorded one"
    options.add_argument("--device", choices=["cpu", "cuda", "meta"], help=where)
    paced = "spend the original's host time between calls; --no-pace shows what the device could do"
    options.add_argument("--pace", action=argparse.BooleanOptionalAction, default=True, help=paced)
    slower = "pace as if the original's host took X times as long"
    options.add_argument("--slow-host", type=_factor, default=1.0, metavar="X", help=slower)
    options.add_argument("--alone", type=int, metavar="RANK", help="of a job of several ranks, run this one alone")
    options.add_argument(
        "--counters", action="store_true", help="on a GPU, also measure its activity and traffic with Nsight Compute"
    )
    options.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)  # what Nsight Compute runs
    options.add_argument("--delayed", action="store_true", help="collectives take as long as in the original")
    options.add_argument("--eager", action="store_true", help="run compiled programs call by call, uncompiled")
    options.add_argument("--seed", type=int, default=0, help="of the inputs")
    options.add_argument("--top", type=_positive, default=10, help="rows of each table")
    return options


def _positive(value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise argparse.ArgumentTypeError(f"{value!r} is not a positive number")
    return int(value)


def _factor(value: str) -> float:
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 1 / MAX_SLOW_HOST <= factor <= MAX_SLOW_HOST:
        raise argparse.ArgumentTypeError(
            f"{value!r} is not how many times as long, from {1 / MAX_SLOW_HOST:g} to {MAX_SLOW_HOST:g}"
        )
    return factor


def main(folder: Path) -> int:
    """Run the benchmark in a folder; returns the exit code."""
    end_with_parent()
    chosen = parser().parse_args()
    try:
        job = read_job(folder)
        if job and chosen.device == "meta" and chosen.alone is None:
            chosen.alone = 0  # meta tensors can't be sent
        if job and chosen.alone is None and not is_rank_process():
            return launch(sys.argv, job.world)
        _run(folder, job, chosen)
    except (MemoryError, BenchmarkError) as error:
        return _end(REFUSED, str(error))
    except RuntimeError as error:  # raised by PyTorch where the machine is at fault
        return _end(FAILED, (str(error).strip() or repr(error)).splitlines()[0])
    except ImportError as error:
        return _end(REFUSED, f"{error}; {WRITE_AGAIN if (error.name or '').startswith('harness') else install(error)}")
    except Exception as error:  # damaged files
        return _end(REFUSED, f"{summarize_error(error)}: a file of this benchmark is damaged; {WRITE_AGAIN}")
    except KeyboardInterrupt:
        return _end(INTERRUPTED, "interrupted")
    return 0


def _end(code: int, reason: str) -> int:
    print(f"run.py: {reason}", file=sys.stderr)
    return code


def _run(folder: Path, job: Job | None, chosen: argparse.Namespace) -> None:
    """Run the benchmark, or this process's rank of it, and print the result."""
    # Imported late, since torch takes seconds that --help need not wait for; a quarter of them would go to the garbage
    # collector, which is therefore off meanwhile.
    gc.disable()
    import torch

    from .host import runtime
    from .measure import measure_benchmark
    from .memory import limit_to_free_memory
    from .ranks import disconnect, gather_from_ranks, rank_state, ranks_sharing_memory
    from .report import format_result, merge_ranks
    from .system import counted_step

    gc.freeze()
    gc.enable()
    runtime.delayed = chosen.delayed
    if chosen.device == "cpu" or not torch.cuda.is_available():
        limit_to_free_memory(ranks_sharing_memory("cpu"))
    benchmark = _benchmark(folder, job, chosen)
    runtime.pace.slow_host = chosen.slow_host
    if chosen.counted:
        counted_step(benchmark.step(paced=False), len(benchmark.source.numbers))
        return
    results = gather_from_ranks(measure_benchmark(benchmark, chosen.iterations, chosen.pace, chosen.counters))
    if rank_state.rank == 0:
        result = merge_ranks(results)
        print(json.dumps(result, indent=1) if chosen.json else format_result(result, chosen.top))
    disconnect()


def _benchmark(folder: Path, job: Job | None, chosen: argparse.Namespace) -> Benchmark:
    """The benchmark, or this process's rank of it."""
    from .benchmark import Benchmark

    if job is None:
        if chosen.alone:
            raise BenchmarkError(f"there is no rank {chosen.alone}: this benchmark has one; leave out --alone")
        return Benchmark(folder, chosen.device, chosen.seed, eager=chosen.eager)
    rank = int(os.environ["RANK"]) if chosen.alone is None else chosen.alone
    if not 0 <= rank < job.world:
        raise BenchmarkError(f"there is no rank {rank}: this benchmark has {job.world}; choose one from 0 on")
    if chosen.alone is None and int(os.environ["WORLD_SIZE"]) != job.world:
        raise BenchmarkError(f"this benchmark has {job.world} ranks, and {os.environ['WORLD_SIZE']} were started")
    groups = job.facts["groups"] if chosen.alone is None else None
    return Benchmark(folder, chosen.device, chosen.seed + rank, job.files(rank), groups, chosen.eager)
