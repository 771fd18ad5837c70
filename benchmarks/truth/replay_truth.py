"""Measures the truth of `benchmarks.claims.replay.replay`: steps recorded on a GPU, replayed, timed in turns with the
original.

With ``transformers`` and ``torchvision``. A workload is recorded, and its kernels compared, in one process; timed in
another right after, since a profiler slows the launches of its process for good and a host's speed drifts; and some run
under Nsight Compute, original and replay alike. Figures are written as soon as they are there; what is there already is
left out when it goes on.

    python -m benchmarks.truth.replay_truth OUT --minutes 7
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, count
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from benchmarks.lib import workloads
from foretrace.api import benchmark
from foretrace.graph import Op
from foretrace.record.watch.session import record_step
from foretrace.record.watch.watch import Watch
from foretrace.replay.harness.measure import synced_ms

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
NCU_S, LONGEST_S = 90.0, 100.0
"""Seconds that Nsight Compute may take, and a stage of a workload without it."""
FEWEST_PLAIN, PLAIN, PLAIN_MS, PROFILED = 30, 300, 3000.0, 5
"""Steps of a recording: a host that is busy now and then is so in some of them."""
SITTINGS, PLAIN_S, TURNS_S, FEWEST_ROUNDS = 3, 0.8, 1.6, 3
"""How often plain steps are timed anew, for how long, and original and replay in turns after them."""
FEWEST_IN_A_ROW, IN_A_ROW, TURN_MS = 1, 5, 15.0
"""Steps of each in a row: as many as take that long, since a host's speed changes within tenths of a second. One more
goes before, since caches hold what ran last."""
PROFILES, POWERED = 3, 2
"""How often kernels are profiled, and power measured, original and replay in turns."""


TRIED = 10
"""Steps that are timed to know about how long one takes."""
HARNESS = ("benchmark", "host", "measure", "report", "system")


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
    plain = as_many(step, PLAIN_MS, FEWEST_PLAIN, PLAIN)
    recording = record_step(step, out / "recordings" / name, plain=plain, profile=PROFILED)
    folder = benchmark(recording, out / "benchmarks" / name)
    tools = harness_of(folder)
    measure, report = tools["measure"], tools["report"]
    replay = tools["benchmark"].Benchmark(folder)
    unpaced = replay.step(paced=False)
    kernels = typical_kernels(measure, {"original": step, "unpaced": unpaced})
    del step
    gc.collect()
    peak = measure.peak_memory(unpaced, replay.inputs, replay.facts["threads"])
    return {
        "coverage": report.shares([report.weights(replay.facts["calls"], replay.facts["numbers"], replay.called)]),
        "failures": [vars(failure) for failure in replay.source.failures],
        "kernel_ms": {variant: sum(us for _, us in found) / 1e3 for variant, found in kernels.items()},
        "kernels": {variant: report.kernels_by_name(found) for variant, found in kernels.items()},
        "peak_memory_bytes": {"original": replay.original["peak_memory_bytes"], "replay": peak},
        "recorded": {word: value for word, value in replay.original.items() if word != "kernels"},
    }


def timed(name: str, out: Path) -> dict[str, Any]:
    """Time an original and its replay in turns, in a process that was never profiled: that slows it for good.

    The plain steps of the recording are a minute old, and of another process: by then a host that others use may have
    another speed. So they are timed anew before the turns, as a recording does it, and set the pace.
    """
    folder = out / "benchmarks" / name
    tools = harness_of(folder)
    measure = tools["measure"]
    step = made(name)
    in_a_row, plain = as_many(step, TURN_MS, FEWEST_IN_A_ROW, IN_A_ROW), as_many(step, PLAIN_S * 1e3, TRIED, PLAIN)
    replay = tools["benchmark"].Benchmark(folder)
    pace = tools["host"].runtime.pace
    variants: dict[str, Step] = {"original": step, "paced": replay.step(True), "unpaced": replay.step(False)}
    times: dict[str, list[list[float]]] = {variant: [] for variant in (*variants, "plain")}
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    gc.collect()
    gc.freeze()  # else each turn would begin with a long look at all that was imported
    for _ in range(SITTINGS):
        times["unpaced"].append(measure.synced_ms(variants["unpaced"], in_a_row))
        times["plain"].append(measure.synced_ms(step, plain))
        pace.slow_host = median(times["plain"][-1]) / replay.original["step_ms"]
        for _ in rounds(TURNS_S):
            for variant in ("original", "paced"):
                times[variant].append(measure.synced_ms(variants[variant], in_a_row))
        for variant, run in variants.items():
            rates[variant].append(measure.back_to_back_ms(run, in_a_row))
    return {
        "step_ms": {variant: median(chain.from_iterable(found)) for variant, found in times.items()},
        "turns_ms": times,
        "step_ms_back_to_back": {variant: median(found) for variant, found in rates.items()},
        "power": powered(tools, variants) if name in METRICS_OF else {},
    }


def rounds(seconds: float) -> Iterator[int]:
    """Numbers, for so many seconds, but no fewer than a few."""
    ends = time.monotonic() + seconds
    for number in count():
        if number >= FEWEST_ROUNDS and time.monotonic() > ends:
            return
        yield number


def as_many(step: Step, ms: float, fewest: int, most: int) -> int:
    """How many steps take that long."""
    return max(fewest, min(most, round(ms / median(synced_ms(step, TRIED)))))


def powered(tools: dict[str, Any], variants: dict[str, Step]) -> dict[str, dict[str, float]]:
    """Power and clock of the original and of its paced replay, in turns: a GPU that gets warmer needs more."""
    found: dict[str, list[dict[str, float]]] = {"original": [], "paced": []}
    for _ in range(POWERED):
        for variant, turns in found.items():
            turns.append(tools["system"].power_and_clock(variants[variant], tools["measure"].synchronize))
    return {variant: {word: mean(t[word] for t in turns) for word in turns[0]} for variant, turns in found.items()}


def made(name: str) -> Step:
    """A workload."""
    return workloads.built({**workloads.WORKLOADS, **SMALL}[name])


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
    found = tools["system"].counters(["-m", "benchmarks.truth.replay_truth", str(out), "--one", name], NCU_S)
    if len(found) != 2:
        raise RuntimeError(str(found))
    return dict(zip(("original", "replay"), found))


class CountedPlainly(Watch):
    """Lets Nsight Compute see the calls that `Counted` lets it see, of a step that autograd takes through as if nobody
    watched: with another mode it clones gradients."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.seen: Counter[str] = Counter()
        self._called = self._counted = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._called = True
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._called = False
            if self._counted:
                torch.cuda.profiler.stop()
                self._counted = False

    def note(self, name: str, overload: str, args: Any, kwargs: dict[str, Any]) -> Op:
        """The call is about to be made."""
        op = super().note(name, overload, args, kwargs)
        if self._called:
            self.seen[f"{name}.{overload}"] += 1
            if (self.seen[f"{name}.{overload}"] - 1) % self.every == 0:
                torch.cuda.profiler.start()
                self._counted = True
        return op


def one(name: str, out: Path) -> None:
    """One step of an original and one of its replay, for somebody who counts."""
    torch.manual_seed(0)
    step = made(name)
    folder = out / "benchmarks" / name
    tools = harness_of(folder)
    replay = tools["benchmark"].Benchmark(folder)
    calls = len(replay.source.numbers)
    tools["system"].counted_step(step, calls, CountedPlainly)
    tools["system"].mark_step()
    tools["system"].counted_step(replay.step(paced=False), calls)


STAGES: dict[str, Callable[[str, Path], dict[str, Any]]] = {"recorded": recorded, "timed": timed, "counted": counted}
"""What is done with each workload, each in a process of its own."""


def stage(name: str, workload: str, out: Path) -> int:
    """One stage of one workload, in this process."""
    torch.manual_seed(0)
    found = STAGES[name](workload, out)
    result_of(name, workload, out).write_text(json.dumps(found))
    print(workload, name, json.dumps(found.get("step_ms", found))[:400], flush=True)
    return 0


def result_of(name: str, workload: str, out: Path) -> Path:
    """Where the figures of a stage are kept."""
    return out / "results" / f"{workload}.{name}.json"


def spare(out: Path) -> subprocess.Popen[str]:
    """A process that has imported all and waits to be told its stage and workload: that takes as long as a stage."""
    command = [sys.executable, "-m", "benchmarks.truth.replay_truth", str(out), "--ready"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ready(out: Path) -> int:
    """Be such a process."""
    for package in ("transformers.modeling_utils", "torchvision"):
        with suppress(ImportError):
            importlib.import_module(package)
    name, _, workload = sys.stdin.readline().strip().partition(" ")
    return stage(name, workload, out) if workload else 0


def apart(name: str, workload: str, out: Path, process: subprocess.Popen[str]) -> None:
    """One stage of one workload in a process of its own; one that fails is said, and left out."""
    try:
        said = process.communicate(f"{name} {workload}\n", LONGEST_S + NCU_S)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        said = process.communicate()[1] + "took too long"
    if process.returncode:
        result_of(name, workload, out).with_suffix(".failed").write_text(said)
        print(workload, name, "failed:", said[-1000:], flush=True)


def left(names: list[str], out: Path) -> Iterator[tuple[str, str]]:
    """Stages and workloads that are not done yet, and did not fail."""
    asked = [(name, workload) for workload in names for name in ("recorded", "timed")]
    for name, workload in [*asked, *(("counted", workload) for workload in METRICS_OF if workload in names)]:
        path = result_of(name, workload, out)
        if not path.exists() and not path.with_suffix(".failed").exists():
            yield name, workload


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("out", type=Path)
    options.add_argument("--minutes", type=float, default=9.0)
    options.add_argument("--ready", action="store_true", help="do one stage of one workload, as told on stdin")
    options.add_argument("--one", metavar="NAME", help="run one step and its replay, for Nsight Compute")
    options.add_argument("workloads", nargs="*", help="all where it is left out")
    chosen = options.parse_intermixed_args()
    if chosen.one:
        one(chosen.one, chosen.out)
        return 0
    if chosen.ready:
        return ready(chosen.out)
    (chosen.out / "results").mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + chosen.minutes * 60
    waiting = spare(chosen.out)
    for name, workload in left(chosen.workloads or list(workloads.WORKLOADS), chosen.out):
        if time.monotonic() > until:
            print("no time left: call it again to go on", flush=True)
            break
        process, waiting = waiting, spare(chosen.out)
        apart(name, workload, chosen.out, process)
    waiting.communicate("\n")
    return 1 if time.monotonic() > until else 0


if __name__ == "__main__":
    sys.exit(main())
