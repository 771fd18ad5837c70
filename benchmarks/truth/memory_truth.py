"""Measures what `benchmarks.claims.accuracy.memory` is held to: memory of steps on a GPU, allocated and reserved, with
each allocation and free; and the largest batch that fits.

On a GPU, with ``timm``, ``torchvision`` and ``transformers``. Each setting of the allocator has a process of its own.

    python -m benchmarks.truth.memory_truth OUT --seconds 225

writes ``OUT/memory.jsonl`` (a row a step: bytes after building and after each step), ``OUT/events/STEP.json.gz`` (what
the allocator did) and ``OUT/batches.jsonl`` (the largest batch by model, and each one tried).
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.memory_steps import BY_BATCH, FRAGMENTING, LIMIT_GB, ZOO_STEPS
from benchmarks.lib.workloads import Step, built
from benchmarks.lib.zoo import ZOO

STEPS_EACH = 6
SETTINGS = {"": 40, "expandable_segments:True": 10, "max_split_size_mb:64": 6}
"""Settings of the allocator, and how many of the zoo's steps are measured under each."""
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
           "segment_unmap", "oom")  # fmt: skip


def let_go() -> None:
    """Free what an earlier step left, libraries included."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def figures() -> dict[str, int]:
    """Bytes by the allocator, and by the driver."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "reserved_now": torch.cuda.memory_reserved(),
        "used": total - free,
        "total": total,
    }


def events() -> list[dict[str, Any]]:
    """What the allocator did since it was asked to remember."""
    found: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    return found


def measured(name: str, setting: str, make: Callable[[], list[Step]], out: Path) -> str:
    """Run a step some times, and write down its memory."""
    let_go()
    before = figures()
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=400_000)
    steps = make()
    marks, after = [len(events())], [figures()]
    for step in steps:
        step()
        after.append(figures())
        marks.append(len(events()))
    trace = events()
    torch.cuda.memory._record_memory_history(None)
    numbers: dict[int, int] = {}
    rows = [
        [ACTIONS.index(e["action"]), numbers.setdefault(e["addr"], len(numbers)), e["size"], e.get("stream", 0)]
        for e in trace
        if e["action"] in ACTIONS
    ]
    where = out / "events" / f"{name}{'.' + setting.split(':')[0] if setting else ''}.json.gz"
    where.write_bytes(gzip.compress(json.dumps({"actions": ACTIONS, "marks": marks, "rows": rows}).encode()))
    row = {"step": name, "setting": setting, "before": before, "after": after}
    with (out / "memory.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return f"{after[-1]['allocated'] / 2**20:,.0f} MiB allocated, {after[-1]['reserved'] / 2**20:,.0f} reserved"


def fits(make: Callable[[int], Step], batch: int) -> dict[str, Any]:
    """Whether some steps of a batch fit."""
    let_go()
    try:
        torch.manual_seed(0)
        step = built(partial(make, batch))
        for _ in range(4):
            step()
        return {"batch": batch, "fits": True, **figures()}
    except torch.OutOfMemoryError:
        return {"batch": batch, "fits": False}


def largest(name: str, out: Path, until: float) -> str:
    """Find the largest batch that fits by bisection, to 1 in 200."""
    make, low, high, tried = BY_BATCH[name], 0, 0, []
    while not high or high - low > max(1, low // 200):
        if time.monotonic() > until:
            return "no time left"
        batch = 2 * low or 8 if not high else (low + high) // 2
        tried.append(fits(make, batch))
        low, high = (batch, high) if tried[-1]["fits"] else (low, batch)
    with (out / "batches.jsonl").open("a") as file:
        file.write(json.dumps({"model": name, "limit_gb": LIMIT_GB, "largest": low, "tried": tried}) + "\n")
    return f"batch {low} fits, {high} does not"


def tried(what: str, does: Callable[[], str]) -> None:
    """Do something that may fail: the others are measured still."""
    begun = time.monotonic()
    try:
        said = does()
    except Exception as error:  # whatever a model's code raises
        said = f"left out: {type(error).__name__}: {str(error)[:160]}"
    print(f"{what}: {said} ({time.monotonic() - begun:.1f} s)", flush=True)


def work(part: str, setting: str, out: Path, until: float) -> None:
    """Measure one part, in a process of its own."""
    if part == "batches":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(LIMIT_GB * 1e9 / total)
        for name in BY_BATCH:
            tried(name, lambda name=name: largest(name, out, until))  # type: ignore[misc]
        return
    for name, make in FRAGMENTING.items():
        tried(f"{name} {setting}", lambda name=name, make=make: measured(name, setting, make, out))  # type: ignore[misc]
    for name in ZOO_STEPS[: SETTINGS[setting]]:
        if time.monotonic() > until:
            print(f"{name}: no time left", flush=True)
        else:
            tried(
                f"{name} {setting}",
                lambda name=name: measured(name, setting, lambda: [built(ZOO[name])] * STEPS_EACH, out),  # type: ignore[misc]
            )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--seconds", type=float, default=225.0)
    options.add_argument("--part", default="", help=argparse.SUPPRESS)
    options.add_argument("--setting", default="", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    begun = time.monotonic()
    (chosen.out / "events").mkdir(parents=True, exist_ok=True)
    if chosen.part:
        work(chosen.part, chosen.setting, chosen.out, begun + chosen.seconds)
        return 0
    parts = [("steps", "", 0.5), ("batches", "", 0.7), ("steps", "expandable_segments:True", 0.8),
             ("steps", "max_split_size_mb:64", 1.0)]  # fmt: skip
    for part, setting, share in parts:
        left = chosen.seconds - (time.monotonic() - begun)
        seconds = max(left * share, 5.0)
        command = [sys.executable, "-m", "benchmarks.truth.memory_truth", str(chosen.out), "--part", part,
                   "--setting", setting, "--seconds", str(seconds)]  # fmt: skip
        changed = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
        subprocess.run(command, env={**os.environ, **changed}, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
