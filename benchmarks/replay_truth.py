"""Measures what `benchmarks.replay` is held to: steps recorded on a GPU, replayed, timed in turns with the original.

With ``transformers`` and ``torchvision``. Steps are recorded, and their kernels compared, in one process; timed
in another, since a profiler slows the launches of its process for good; and some run under Nsight Compute, original and
replay alike. Figures are written as soon as they are there; what is there already is left out when it goes on.

    python -m benchmarks.replay_truth OUT --minutes 7
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import workloads
from foretrace.record.session import record
from foretrace.replaying import benchmark

Step = Callable[[], Any]

SMALL: dict[str, Callable[[], Step]] = {
    "small_dlrm": partial(
        workloads.dlrm_of,
        {"rows": [5000] * 4, "dim": 16, "bottom": [13, 32], "top": [32, 16], "pooling": 4},
        128,
        0.0,
        "cpu",
    ),
}
"""To try this out where there is no GPU."""
METRICS_OF = ("dlrm_default_b2048", "resnet50_b64_fp32", "gpt2_b2_s256_fp32")
NCU_S = 90.0
FEWEST_ROUNDS, ROUNDS, IN_A_ROW, ROUNDS_S = 4, 10, 5, 8.0
"""Rounds of original, paced and unpaced, each some steps in a row; fewer where they take long."""
PROFILES = 3
LONGEST_S = 100
"""A workload that takes longer is given up."""
OUT_OF_TIME, LOST = 1, 3
"""How a stage ends where time is up, and where the device is lost."""


HARNESS = ("benchmark", "comparison", "measure", "system")


def harness_of(folder: Path) -> dict[str, Any]:
    """The modules that a benchmark brings along."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        return {name: importlib.import_module(f"harness.{name}") for name in HARNESS}
    finally:
        sys.path.remove(str(folder))


def recorded(name: str, out: Path) -> dict[str, Any]:
    """Record a workload, make its benchmark, and hold their kernels and memory against each other."""
    step = made(name)
    if torch.cuda.is_available():  # what an earlier workload left of cuBLAS is no part of this one's memory
        torch._C._cuda_clearCublasWorkspaces()
    recording = record(step, out / "recordings" / name, plain=10, profile=2, warmup=4)
    folder = benchmark(recording, out / "benchmarks" / name)
    tools = harness_of(folder)
    measure, comparison = tools["measure"], tools["comparison"]
    replay = tools["benchmark"].Benchmark(folder)
    unpaced = replay.step(paced=False)
    kernels = typical_kernels(measure, {"original": step, "unpaced": unpaced})
    del step
    gc.collect()
    peak = measure.peak_memory(unpaced, replay.inputs, replay.facts["threads"])
    return {
        "coverage": comparison.coverage(replay.facts["calls"], replay.facts["numbers"], replay.called),
        "failures": [vars(failure) for failure in replay.source.failures],
        "kernel_ms": {variant: sum(us for _, us in found) / 1e3 for variant, found in kernels.items()},
        "kernels": {variant: comparison.kernels_by_name(found) for variant, found in kernels.items()},
        "peak_memory_bytes": {"original": replay.original["peak_memory_bytes"], "replay": peak},
        "recorded": {word: value for word, value in replay.original.items() if word != "kernels"},
    }


def timed(name: str, out: Path) -> dict[str, Any]:
    """Time an original and its replay in turns, in a process that was never profiled: that slows it for good."""
    folder = out / "benchmarks" / name
    tools = harness_of(folder)
    measure = tools["measure"]
    step = made(name)
    replay = tools["benchmark"].Benchmark(folder)
    variants: dict[str, Step] = {"original": step, "paced": replay.step(True), "unpaced": replay.step(False)}
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    started = time.monotonic()
    for number in range(ROUNDS):
        if number >= FEWEST_ROUNDS and time.monotonic() - started > ROUNDS_S:
            break
        for variant, run in variants.items():
            times[variant] += measure.synced_ms(run, IN_A_ROW)
            rates[variant].append(measure.back_to_back_ms(run, IN_A_ROW))
    watched = ("original", "paced") if name in METRICS_OF else ()
    return {
        "step_ms": {variant: median(found) for variant, found in times.items()},
        "all_step_ms": times,
        "step_ms_back_to_back": {variant: median(found) for variant, found in rates.items()},
        "power": {variant: tools["system"].power_and_clock(variants[variant], measure.wait) for variant in watched},
    }


def made(name: str) -> Step:
    """A workload, built on the GPU at once: its tables take a CPU half a minute."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return {**workloads.WORKLOADS, **SMALL}[name]()


def typical_kernels(measure: Any, variants: dict[str, Step]) -> dict[str, list[tuple[str, float]]]:
    """The kernels of each, of the profile whose time is the middle one of several taken in turns."""
    found: dict[str, list[list[tuple[str, float]]]] = {variant: [] for variant in variants}
    for _ in range(PROFILES):
        for variant, run in variants.items():
            found[variant].append(measure.kernels_of(run))
    return {
        variant: sorted(profiles, key=lambda kernels: sum(us for _, us in kernels))[PROFILES // 2]
        for variant, profiles in found.items()
    }


def counted(name: str, out: Path) -> dict[str, Any]:
    """The counters of a workload's original and of its replay, in a process of their own."""
    tools = harness_of(out / "benchmarks" / name)
    found = tools["system"].counters(["-m", "benchmarks.replay_truth", str(out), "--one", name], NCU_S)
    if len(found) != 2:
        raise RuntimeError(str(found))
    return dict(zip(("original", "replay"), found))


def one(name: str, out: Path) -> None:
    """One step of an original and one of its replay, for somebody who counts."""
    torch.manual_seed(0)
    step = made(name)
    folder = out / "benchmarks" / name
    tools = harness_of(folder)
    replay = tools["benchmark"].Benchmark(folder)
    calls = len(replay.source.numbers)
    tools["system"].counted_step(step, calls)
    tools["system"].divide()
    tools["system"].counted_step(replay.step(paced=False), calls)


def keep(path: Path, make: Callable[[], dict[str, Any]]) -> None:
    """Write what is made; one that can't be had here is said, and left out."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LONGEST_S)
    try:
        found = make()
    except Exception:  # whatever it was: the others shall be measured
        path.with_suffix(".failed").write_text(traceback.format_exc())
        print(path.stem, traceback.format_exc(), flush=True)
        return
    finally:
        signal.alarm(0)
    path.write_text(json.dumps(found))
    print(path.stem, json.dumps(found.get("step_ms", found)), flush=True)


def _give_up(*_: Any) -> None:
    raise TimeoutError(f"took longer than {LONGEST_S} s")


STAGES: dict[str, Callable[[str, Path], dict[str, Any]]] = {"recorded": recorded, "timed": timed, "counted": counted}
"""What is done with each workload, each stage in a process of its own."""


def stage(name: str, chosen: argparse.Namespace) -> int:
    """One stage of all workloads."""
    until = time.monotonic() + chosen.minutes * 60
    for workload in chosen.workloads or workloads.WORKLOADS:
        path = chosen.out / "results" / f"{workload}.{name}.json"
        if path.exists() or path.with_suffix(".failed").exists() or (name == "counted" and workload not in METRICS_OF):
            continue
        if time.monotonic() > until:
            print("no time left: call it again to go on", flush=True)
            return OUT_OF_TIME
        torch.manual_seed(0)
        keep(path, partial(STAGES[name], workload, chosen.out))
        gc.collect()
        if torch.cuda.is_available():
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except RuntimeError:
                return LOST
    return 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=7.0, help="for each stage")
    options.add_argument("--stage", choices=list(STAGES), help="only this one, in this process")
    options.add_argument("--one", metavar="NAME", help="run one step and its replay, for Nsight Compute")
    options.add_argument("workloads", nargs="*", help="all where it is left out")
    chosen = options.parse_intermixed_args()
    if chosen.one:
        one(chosen.one, chosen.out)
        return 0
    (chosen.out / "results").mkdir(parents=True, exist_ok=True)
    if chosen.stage:
        return stage(chosen.stage, chosen)
    command = [sys.executable, "-m", "benchmarks.replay_truth", *sys.argv[1:]]
    for name in STAGES:
        while subprocess.run([*command, "--stage", name]).returncode == LOST:
            print("the device was lost: going on in a new process", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
