"""Claim: what-ifs of the HiPC paper have the right sign, and a speed-up within 5 % of the measured one.

A DLRM before and after: its lookups fused into one table, another top MLP, and the interaction moved out of the way
(the vectors joined instead of multiplied with each other). On a machine with a GPU each is timed, back and forth with
the step as it was. On any machine the times that were kept are held against forecasts: of sketched steps, and of the
step as it was, edited, where there is such an edit. ``low`` and ``high`` are the quartiles of the speed-ups of single
rounds: where they are on both sides of 1, nobody can tell the sign.

Hosts of one kind are not equally fast, and no step shows a device's gain that waits for its host. So ``predicted`` and
``edited`` are for a host as fast as the measured one was in the step before, the only time that they know of;
``shipped`` is for the host as it is shipped.

    python -m benchmarks.claims.accuracy.whatif_truth --measure truth.json      # with a GPU; --device cpu tries it
    without python -m benchmarks.claims.accuracy.whatif_truth truth.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from benchmarks.lib.table import H200, keep
from benchmarks.lib.workloads import DLRM, DLRM_SHAPES

MEASURED_ON = H200
BATCH, ROUNDS, STEPS = 2048, 15, 10
MOST = 0.05
SHIPPED, SPEEDS = "h200", (0.5, 2.0)
"""The platform, and how many times as fast as its own a host may be."""
WIDER, NARROWER = [2048] * 3, [256] * 3
EDITS = {
    "lookups fused": ["fuse=lookups"],
    "wider top MLP": [f"width:top.{layer}=2048" for layer in (0, 2, 4)],
    "narrower top MLP": [f"width:top.{layer}=256" for layer in (0, 2, 4)],
}
"""Changes that `foretrace whatif` makes of the step before."""


class Fused(DLRM):
    """All tables in one: the ids of each are shifted by the rows of those before it."""

    def __init__(self, rows: list[int], dim: int, bottom: list[int], top: list[int]) -> None:
        super().__init__(rows, dim, bottom, top)
        self.tables = nn.ModuleList([nn.EmbeddingBag(sum(rows), dim, mode="sum", sparse=True)])

    def forward(self, dense: torch.Tensor, ids: list[torch.Tensor], offsets: list[torch.Tensor]) -> torch.Tensor:
        bottom = self.bottom(dense)
        looked_up = self.tables[0](ids[0], offsets[0]).view(-1, dense.shape[0], bottom.shape[1]).unbind(0)
        features = torch.cat([bottom, *looked_up], dim=1).view(dense.shape[0], -1, bottom.shape[1])
        products = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat([bottom, products], dim=1))


class Joined(DLRM):
    """No products of vectors: the top MLP reads them all."""

    def __init__(self, rows: list[int], dim: int, bottom: list[int], top: list[int]) -> None:
        super().__init__(rows, dim, bottom, top)
        self.top[0] = nn.Linear((len(rows) + 1) * dim, top[0])

    def forward(self, dense: torch.Tensor, ids: list[torch.Tensor], offsets: list[torch.Tensor]) -> torch.Tensor:
        looked_up = [table(i, o) for table, i, o in zip(self.tables, ids, offsets)]
        return self.top(torch.cat([self.bottom(dense), *looked_up], dim=1))


def step_of(kind: type[DLRM], device: str, shrink: int = 1, **changes: Any) -> Callable[[], None]:
    """A DLRM of the default shape with SGD; ``shrink`` makes its tables smaller, for a machine without a GPU."""
    sizes = {**DLRM_SHAPES["default"], **changes}
    pooling = sizes.pop("pooling")
    sizes["rows"] = [rows // shrink for rows in sizes["rows"]]
    model = kind(**sizes).to(device)
    update = torch.optim.SGD(model.parameters(), lr=0.01)
    dense, clicked = torch.randn(BATCH, sizes["bottom"][0], device=device), torch.rand(BATCH, 1, device=device)
    tables = len(sizes["rows"]) if kind is Fused else 1
    count, rows = BATCH * pooling * tables, sizes["rows"][0] * tables
    ids = [torch.randint(0, rows, (count,), device=device) for _ in model.tables]
    offsets = [torch.arange(0, count, pooling, device=device) for _ in model.tables]
    loss = nn.BCEWithLogitsLoss()

    def step() -> None:
        update.zero_grad(set_to_none=True)
        loss(model(dense, ids, offsets), clicked).backward()
        update.step()

    return step


CASES: dict[str, Callable[..., Callable[[], None]]] = {
    "lookups fused": lambda device, shrink=1: step_of(Fused, device, shrink),
    "wider top MLP": lambda device, shrink=1: step_of(DLRM, device, shrink, top=WIDER),
    "narrower top MLP": lambda device, shrink=1: step_of(DLRM, device, shrink, top=NARROWER),
    "interaction moved": lambda device, shrink=1: step_of(Joined, device, shrink),
}


def before(device: str, shrink: int = 1) -> Callable[[], None]:
    """The step as it was."""
    return step_of(DLRM, device, shrink)


def timed(step: Callable[[], None], device: str) -> float:
    """Milliseconds of a step with a sync at its end, the middle one of several."""
    took = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append((time.perf_counter() - began) * 1e3)
    return median(took)


def measure(out: Path, device: str, rounds: int) -> None:
    """Time each case back and forth with the step as it was."""
    shrink = 1 if device == "cuda" else 100
    kept = {}
    for name, build in CASES.items():
        old, new = before(device, shrink), build(device, shrink)
        kept[name] = [(timed(old, device), timed(new, device)) for _ in range(rounds + 1)][1:]
        out.write_text(json.dumps(kept, indent=1) + "\n")
        print(name, speedup(kept[name]), flush=True)
        del old, new


def speedup(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Quartiles and median of how many times faster a step became, round by round."""
    low, typical, high = quantiles([before / after for before, after in pairs])
    return low, typical, high


def compare(truth: dict[str, list[tuple[float, float]]]) -> int:
    """Hold measured speed-ups against predicted ones."""
    import foretrace as ft

    rows = []
    old = ft.sketch(lambda: before("cuda"), device="cuda")
    there = on_host_of(old, median(old_ms for pairs in truth.values() for old_ms, _ in pairs))
    for name, pairs in truth.items():
        new = ft.sketch(lambda name=name: CASES[name]("cuda"), device="cuda")
        predicted, shipped = (step_ms(old, on) / step_ms(new, on) for on in (there, SHIPPED))
        edited = ft.what_if(old, there, EDITS[name]).speedup if name in EDITS else None
        low, measured, high = speedup(pairs)
        right = "right" if (measured > 1) == (predicted > 1) else "wrong"
        rows.append({
            "what if": name, "low": low, "measured": measured, "high": high, "predicted": predicted, "edited": edited,
            "shipped": shipped, "off": abs(predicted / measured - 1), "sign": "unsure" if low < 1 < high else right,
        })  # fmt: skip
    keep("whatif_truth", rows)
    print(f"on {there}")
    return 0 if all(row["sign"] != "wrong" and row["off"] <= MOST for row in rows) else 1


def step_ms(graph: Any, on: str) -> float:
    """A step's forecast, with all kernels by the models."""
    import foretrace as ft

    return ft.predict(graph, on=on, kernels="model").step_ms


def on_host_of(step: Any, measured_ms: float) -> str:
    """The platform with a host so fast that a step takes what was measured."""
    slow, fast = SPEEDS
    for _ in range(10):
        speed = (slow + fast) / 2
        slow, fast = (speed, fast) if step_ms(step, f"{SHIPPED}:host={speed:.3f}") > measured_ms else (slow, speed)
    return f"{SHIPPED}:host={slow:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", type=Path, nargs="?")
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.device, args.rounds)
        return 0
    if not args.truth:
        parser.error("give the file of measured times, or --measure")
    return compare(json.loads(args.truth.read_text()))


if __name__ == "__main__":
    sys.exit(main())
