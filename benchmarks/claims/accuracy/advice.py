"""Claim: `foretrace advise` finds a plan within 1 % of the best one that simulating every plan finds, and simulates
fewer than 5 % of the plans.

Twelve spaces of 1,296 to 2,040 plans: three steps (two residual MLPs and a GPT) for four GPUs of two kinds, with all of
their memory and with so little that a fifth of the plans fit.

    PYTHONPATH=src:examples python -m benchmarks.claims.accuracy.advice --points FOLDER

FOLDER takes the simulated plans as they are done; those that it holds already are not simulated again.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import gpt
from benchmarks.lib.table import keep
from foretrace.graph import Job
from foretrace.platform.registry import load_platform
from foretrace.record.sketch.sketch import sketch
from foretrace.whatif.plan_search import Search
from foretrace.whatif.plans import Choice, Factor, as_changes, factors_of, plans_of
from foretrace.whatif.points import Point
from foretrace.whatif.sweep import Subject, Swept
from foretrace.whatif.what_if import one_step

WORLD = 4
PLATFORMS = ("h200", "a100")
FACTORS = ("layout", "shards", "batch", "checkpoint", "precision")
FITTING = 0.2
"""Share of the plans that fit in the smaller memory."""
WITHIN, SHARE = 0.01, 0.05


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def residual_mlp(width: int, blocks: int, batch: int) -> Callable[[], None]:
    with torch.device("cuda"):
        inner = nn.Sequential(*(Block(width) for _ in range(blocks)))
        model = nn.Sequential(nn.Linear(64, width), inner, nn.Linear(width, 1000))
        given, wanted = torch.randn(batch, 64), torch.randint(1000, (batch,))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(given), wanted).backward()
        optimizer.step()

    return step


def small_gpt() -> Callable[[], torch.Tensor]:
    gpt.PRESETS["advice"] = gpt.Shape(layers=2, heads=8, dim=1024, vocabulary=8192, seq=512, batch=16)
    return gpt.make_step("advice", device="cuda")


STEPS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "MLP of 2 blocks": (partial(residual_mlp, 2048, 2, 4096), (*FACTORS, "optimizer")),
    "MLP of 4 blocks": (partial(residual_mlp, 4096, 4, 2048), FACTORS),
    "GPT of 2 blocks": (small_gpt, FACTORS),
}
"""Steps, and what their plans differ in."""


def simulated(job: Job, plans: Sequence[Choice], file: Path | None) -> dict[str, dict[Choice, Point]]:
    """Every plan, simulated on each platform."""
    found: dict[str, dict[Choice, Point]] = {name: {} for name in PLATFORMS}
    if file and file.exists():
        for line in file.read_text().splitlines():
            point = Point(**json.loads(line))
            found[point.platform][tuple(point.changes)] = point
    swept = Swept(Subject(job, PLATFORMS))
    # Those that share changes of the step one after the other, so that these are made once.
    for number, plan in enumerate(sorted(plans)):
        if plan in found[PLATFORMS[0]]:
            continue
        points = swept.points(as_changes(plan), PLATFORMS)
        for point in points:
            found[point.platform][plan] = point
        if file:
            with file.open("a") as out:
                out.writelines(json.dumps(asdict(point)) + "\n" for point in points)
        if number % 100 == 0:
            print(f"{number} of {len(plans)}", file=sys.stderr, flush=True)
    return found


def row(
    step: str, on: str, job: Job, factors: list[Factor], known: dict[Choice, Point], limit: int | None
) -> dict[str, Any]:
    """A search that is answered from what was simulated, and the best of all."""
    where = load_platform(on)
    search = Search(job, where, WORLD, lambda plans, _: [known[plan] for plan in plans], limit, factors=factors)
    search.run()
    count, found = search.simulated, search.ranked()[0]
    search.all_plans()
    best = search.ranked()[0]
    us = {plan: (known[plan].next_ms or 0) / (known[plan].samples or 1) for plan in (found, best)}
    too_low = sum(
        search.bounds.sample_us(plan) > point.next_ms * 1e3 / (point.samples or 1)
        or (point.memory_bytes is not None and search.bounds.nbytes(plan) > point.memory_bytes)
        for plan, point in search.points.items()
        if point.next_ms is not None
    )
    return {
        "step": step,
        "on": on,
        "memory": "all" if limit is None else f"{limit / 2**30:.2g} GiB",
        "plans": len(search.space),
        "possible": len(search.plans()),
        "simulated": count,
        "share": count / len(search.space),
        "off": us[found] / us[best] - 1,
        "bounds_broken": too_low,
        "found": " ".join(found),
        "best": " ".join(best),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=Path)
    parser.add_argument("--only", choices=list(STEPS))
    args = parser.parse_args()
    gc.disable()  # as the command line does
    rows: list[dict[str, Any]] = []
    for name, (build, names) in STEPS.items():
        if args.only and name != args.only:
            continue
        job = one_step(Job([sketch(build, device="cuda")]))
        factors = [factor for factor in factors_of(job, WORLD) if factor.name in names]
        plans = plans_of(factors)
        file = args.points / f"{name.replace(' ', '-')}.jsonl" if args.points else None
        known = simulated(job, plans, file)
        for on in PLATFORMS:
            held = [point.reserved_bytes for plan in plans if (point := known[on][plan]).reserved_bytes]
            rows += [row(name, on, job, factors, known[on], limit) for limit in (None, int(np.quantile(held, FITTING)))]
    missed = [
        f"{r['step']} on {r['on']}, memory {r['memory']}"
        for r in rows
        if r["off"] > WITHIN or r["share"] >= SHARE or r["bounds_broken"]
    ]
    print(
        *(f"{r['step']} {r['on']} {r['memory']}: {r['simulated']}/{r['plans']} off {r['off']:.4f}" for r in rows),
        sep="\n",
    )
    if not args.only:
        keep("advice", rows, verdict=f"Does not hold for {', '.join(missed)}" if missed else None)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
