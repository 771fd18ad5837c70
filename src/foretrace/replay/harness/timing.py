"""A benchmark timed, and held against its original."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from . import comparison, measure, system
from .benchmark import Benchmark
from .together import tell, together

WARM_UP = 4
FIGURES = ("step_ms", "step_ms_back_to_back", "kernel_ms", "launches", "peak_memory_bytes")
"""What a replay and its original both have."""
UNSAID = ("kernels", "why")
"""What is known of an original and is no figure of its step."""


def run(benchmark: Benchmark, iterations: int | None, paced: bool, counters: bool = False) -> dict[str, Any]:
    """Time a benchmark, and hold it against the original."""
    step = benchmark.step(paced)
    times = _times(benchmark, step, iterations)
    kernels = measure.kernels_of(step) if benchmark.device == "cuda" else []
    result = {
        "device": torch.cuda.get_device_name() if benchmark.device == "cuda" else benchmark.device,
        "paced": paced,
        **times,
        "kernel_ms": sum(us for _, us in kernels) / 1e3 if kernels else None,
        "launches": len(kernels) if kernels else None,
        "peak_memory_bytes": measure.peak_memory(step, benchmark.inputs, benchmark.facts["threads"]),
        "system": _system(benchmark, step, counters),
        "kernels": comparison.compare_kernels(kernels, benchmark.original["kernels"]),
        **_coverage(benchmark),
        "original": {word: value for word, value in benchmark.original.items() if word not in UNSAID},
        "notes": benchmark.notes,
    }
    if all(result[word] is None or benchmark.original.get(word) is None for word in FIGURES):
        why = benchmark.original.get("why") or "what it measured is of another device"
        benchmark.notes.append(f"there is no original to compare with: {why}")
    return result


def _times(benchmark: Benchmark, step: Callable[[], Any], iterations: int | None) -> dict[str, Any]:
    """How long a step takes; nothing on the meta device, where nothing is computed."""
    if benchmark.device == "meta":
        benchmark.notes.append("nothing is computed on the meta device, so a step has no time there")
        words = ("step_ms", "low_ms", "high_ms", "step_ms_back_to_back")
        return {"iterations": 0, **dict.fromkeys(words)}
    for _ in range(WARM_UP):
        step()
    if together.joined and iterations is None:  # ranks that stop at different steps would wait for each other
        iterations = tell(measure.enough(measure.synced_ms(step, WARM_UP)))[0]
    times = measure.synced_ms(step, iterations)
    typical, low, high = measure.spread(times)
    return {
        "iterations": len(times),
        "step_ms": typical,
        "low_ms": low,
        "high_ms": high,
        "step_ms_back_to_back": measure.back_to_back_ms(step, len(times)),
    }


def _system(benchmark: Benchmark, step: Callable[[], Any], counters: bool) -> dict[str, Any] | None:
    """What the GPU does meanwhile; None on a CPU, and for ranks that could not tell when to stop."""
    if benchmark.device != "cuda" or together.joined:
        if counters:
            where = "several ranks at once" if together.joined else f"the {benchmark.device}"
            benchmark.notes.append(f"nothing is counted on {where}: --counters are those of one rank's GPU")
        return None
    found: dict[str, Any] = system.power_and_clock(step, measure.wait)
    if counters:
        found |= system.counters([str(benchmark.folder / "run.py"), "--counted"])[0]
    return found


def _coverage(benchmark: Benchmark) -> dict[str, Any]:
    """What was called, what was not, and why."""
    facts = benchmark.facts
    return {
        "weights": comparison.weights(facts["calls"], facts["numbers"], benchmark.called, facts["unowned_us"]),
        "ops": comparison.by_op(facts["calls"], facts["numbers"], benchmark.called),
        "failures": [vars(failure) for failure in benchmark.source.failures],
        "stand_ins": [
            {"call": facts["calls"][number]["name"], "why": facts["stand_ins"].get(str(number), "")}
            for number in benchmark.source.stand_ins
        ],
        "translated": dict(Counter(facts["calls"][number]["name"] for number in benchmark.source.translated)),
    }
