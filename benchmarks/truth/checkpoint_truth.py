"""Measures the plans of `benchmarks.claims.accuracy.checkpoint_budget` on a GPU: step time and peak memory of each.

    python -m benchmarks.truth.checkpoint_truth OUT --seconds 80

Plans are those of ``benchmarks/results/checkpoint_budget.json``. Each is timed in several turns, which take them in
another order each time; ``OUT/checkpoint.jsonl`` has a row a plan: the median step in milliseconds, and bytes.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from pathlib import Path

import torch

import gpt
from benchmarks.lib.checkpoint_plans import SHAPE, make_step

RESULTS = Path(__file__).resolve().parents[1] / "results" / "checkpoint_budget.json"
TURNS, STEPS = 3, 6


def timed(plan: str, shape: gpt.Shape, device: str) -> tuple[list[float], int]:
    """Milliseconds of some steps, and the most bytes allocated."""
    cuda = device == "cuda"
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    step, found = make_step(plan.split(), shape, device), []
    for _ in range(2 + STEPS):
        begun = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        found.append((time.perf_counter() - begun) * 1e3)
    return found[2:], torch.cuda.max_memory_allocated() if cuda else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=80)
    parser.add_argument("--tiny", action="store_true", help="a small model, to try this on a CPU")
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    plans = list(dict.fromkeys(row["plan"] for row in json.loads(RESULTS.read_text())["rows"] if row["ms"]))
    shape = gpt.Shape(SHAPE.layers, 2, 32, 64, 16, 2) if args.tiny else SHAPE
    device = "cpu" if args.tiny else "cuda"
    ms: dict[str, list[float]] = {plan: [] for plan in plans}
    peak: dict[str, int] = {}
    for turn in range(TURNS):
        for plan in random.Random(turn).sample(plans, len(plans)):
            if time.monotonic() > until:
                break
            found, peak[plan] = timed(plan, shape, device)
            ms[plan] += found
            rows = [{"plan": p, "ms": statistics.median(ms[p]), "all": ms[p], "peak": peak[p]} for p in peak]
            (args.out / "checkpoint.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            print(f"{turn} {peak[plan] / 2**30:.2f} GiB {statistics.median(found):.2f} ms {plan[:60]}", flush=True)


if __name__ == "__main__":
    main()
