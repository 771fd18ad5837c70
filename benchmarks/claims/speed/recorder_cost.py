"""Claim: outside the steps it records, a recorder costs under 1 % of a step.

A small DLRM, whose steps are as short as steps get, trains in turns with nothing attached, with a recorder that
waits for its first step, and with one that has finished. The turns are interleaved and medians compared. Such medians
differ by a few per cent between turns of the same kind, so what the recorder itself does in a step, its two hooks, is
timed alone as well: that is the figure the claim is held to.

    python -m benchmarks.claims.speed.recorder_cost
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.optim import optimizer

from benchmarks.lib.table import keep
from foretrace.record.watch.schedule import Schedule
from foretrace.record.watch.session import open_session, recording
from foretrace.record.watch.step_boundaries import _after, _before

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
import dlrm

TURNS, STEPS, CALLS = 60, 30, 50_000


def step_ms(step: Callable[[], Any]) -> float:
    """Median time of a step over one turn."""
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return median(times)


def hooks_us() -> float:
    """What the hooks of one step take, with nothing else around them."""
    weight = torch.zeros(1)
    bare = torch.optim.SGD([weight], lr=0.1)
    began = time.perf_counter()
    for _ in range(CALLS):
        _before(bare, (), {})
        _after(bare, (), {})
    return (time.perf_counter() - began) / CALLS * 1e6


def never_attached(step: Callable[[], Any]) -> float:
    """A turn with the hooks of torch's optimizers as they were before Foretrace came."""
    hooks = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    kept = [dict(of_kind) for of_kind in hooks]
    for of_kind in hooks:
        of_kind.clear()
    try:
        return step_ms(step)
    finally:
        for of_kind, before in zip(hooks, kept):
            of_kind.update(before)


def waiting(step: Callable[[], Any]) -> float:
    """A turn with a recorder that has not begun."""
    session = open_session(Path("never-written"), Schedule(warmup=10**6))
    try:
        return step_ms(step)
    finally:
        session.close()


def waiting_hooks_us() -> float:
    """The hooks of a recorder that has not begun."""
    session = open_session(Path("never-written"), Schedule(warmup=10**6))
    try:
        return hooks_us()
    finally:
        session.close()


TURN = {"never attached": never_attached, "waiting": waiting, "finished": step_ms}


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    step = dlrm.make_step(preset="tiny", device=device)
    step_ms(step)
    with tempfile.TemporaryDirectory() as folder, recording(f"{folder}/r", plain=2, profile=1, warmup=1):
        step_ms(step)
    times: dict[str, list[float]] = {name: [] for name in TURN}
    for _ in range(TURNS):
        for name, turn in TURN.items():
            times[name].append(turn(step))
    alone = {"never attached": 0.0, "waiting": waiting_hooks_us(), "finished": hooks_us()}
    plain = median(times["never attached"])
    rows = []
    for name, taken in times.items():
        ratios = sorted(ours / plain for ours, plain in zip(taken, times["never attached"]))
        quarter = len(ratios) // 4
        rows.append(
            {
                "recorder": name,
                "step ms": median(taken),
                "against never attached": median(ratios),
                "quartiles": f"{ratios[quarter]:.3f} to {ratios[-quarter - 1]:.3f}",
                "hooks us": alone[name],
                "hooks of a step": alone[name] / plain / 1e3,
            }
        )
    keep("recorder_cost", rows)
    return int(any(row["hooks of a step"] > 0.01 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
