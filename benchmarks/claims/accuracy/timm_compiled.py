"""Claim: predicted for a GPU that was never measured, the speed-up by torch.compile ranks timm's models as published:
rank correlation 0.8 with the inference times of an RTX 4090 (float16 autocast, torch 2.9.1), eager and compiled.

Models are taken in a random order that never changes, and sketched without a GPU into OUT (half a minute each;
interrupted, it goes on). Then all sketches are predicted for an RTX 4090 and held against the two published tables.

    python -m benchmarks.claims.accuracy.timm_compiled OUT [--models 100] [--public ../shared/public]

wants ``timm``. ``speed-up`` is the eager step over the compiled one.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.accuracy.accuracy_single import geomean
from benchmarks.lib.correlation import rank_correlation
from benchmarks.lib.table import RTX_4090, keep
from benchmarks.truth.sketched import keep_sketch
from foretrace import load
from foretrace.platform.platform import Platform
from foretrace.prediction.predict import predict_on_platform
from foretrace.record.sketch.sketch import sketch

TABLES = {"eager": "benchmark-infer-amp-nchw-pt291-cu128-4090.csv.gz",
          "compiled": "benchmark-infer-amp-nchw-pt291-cu128-4090-dynamo.csv.gz"}  # fmt: skip
GPU = "rtx-4090"
MEASURED_ON = RTX_4090
CORRELATION = 0.8
Key = tuple[str, int, int]
"""A model, the side of its images, and the batch."""


def published(public: Path) -> dict[Key, dict[str, float]]:
    """Milliseconds of each model that both tables have at the same batch."""
    found: dict[Key, dict[str, float]] = {}
    for mode, name in TABLES.items():
        with gzip.open(public / "timm" / name, "rt") as file:
            for row in csv.DictReader(file):
                key = row["model"], int(row["infer_img_size"]), int(row["infer_batch_size"])
                found.setdefault(key, {})[mode] = float(row["infer_step_time"])
    return {key: times for key, times in found.items() if len(times) == len(TABLES)}


def inference(model: str, side: int, batch: int, compiled: bool) -> Callable[[], None]:
    """A forward of a model as timm's benchmark script runs it."""
    import timm
    import torch

    net = timm.create_model(model, **({"img_size": side} if _takes_size(model) else {})).to("cuda").eval()
    images = torch.randn(batch, 3, side, side, device="cuda")
    run = torch.compile(net) if compiled else net

    def step() -> None:
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            run(images)

    return step


def _takes_size(model: str) -> bool:
    """Whether a model is built for one size of images."""
    import timm

    return bool(timm.models.get_pretrained_cfg(model).fixed_input_size)


def folder_of(out: Path, key: Key, mode: str) -> Path:
    return out / f"{key[0]}-{key[1]}-{key[2]}.{mode}"


def sketch_models(keys: list[Key], out: Path, count: int) -> None:
    """Sketch models in both modes until there are so many; what can't be sketched is said and left out."""
    done = 0
    for key in keys:
        if done == count:
            return
        try:
            for mode in TABLES:
                where = folder_of(out, key, mode)
                if not where.exists():
                    keep_sketch(sketch(partial(inference, *key, mode == "compiled"), device="cuda"), where)
        except Exception as error:  # a model that this timm does not have, or that can't be sketched
            print(f"{key[0]} left out: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        done += 1
        print(f"{done} of {count}: {key[0]} at {key[1]}", flush=True)


def scored(key: Key, measured: dict[str, float], out: Path, platform: Platform) -> dict[str, Any]:
    """A model's two times, published and predicted."""
    row: dict[str, Any] = {"model": key[0], "side": key[1], "batch": key[2]}
    forecast = {mode: predict_on_platform(load(folder_of(out, key, mode)), platform) for mode in TABLES}
    for mode in TABLES:
        row |= {f"{mode} ms": measured[mode], f"{mode} off": forecast[mode].step_ms / measured[mode] - 1}
        row[f"{mode} inside"] = forecast[mode].low_ms <= measured[mode] <= forecast[mode].high_ms
    row["speed-up"] = measured["eager"] / measured["compiled"]
    row["predicted"] = forecast["eager"].step_ms / forecast["compiled"].step_ms
    return row


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("--models", type=int, default=100)
    options.add_argument("--public", type=Path, default=Path("../shared/public"))
    options.add_argument("--score", action="store_true", help="only score what is there")
    chosen = options.parse_args()
    times = published(chosen.public)
    keys = sorted(times)
    random.Random(0).shuffle(keys)
    if not chosen.score:
        sketch_models(keys, chosen.out, chosen.models)
    platform = Platform.named(GPU)
    there = [key for key in keys if all((folder_of(chosen.out, key, mode) / "job.json").exists() for mode in TABLES)]
    rows = [scored(key, times[key], chosen.out, platform) for key in there]
    correlation = round(rank_correlation(*([row[name] for row in rows] for name in ("speed-up", "predicted"))), 6)
    ratio = [abs(row["predicted"] / row["speed-up"] - 1) for row in rows]
    print(f"{len(rows)} models, rank correlation {correlation:.3f}, speed-up off {geomean(ratio):.1%} (geometric mean)")
    for mode in TABLES:
        off = [abs(row[f"{mode} off"]) for row in rows]
        print(f"{mode}: {np.mean(off):.1%} mean, {sum(row[f'{mode} inside'] for row in rows) / len(rows):.0%} inside")
    missed = f"Does not hold: rank correlation {correlation:.2f} ({CORRELATION}) over {len(rows)} models"
    said = missed if correlation < CORRELATION else None
    keep("timm_compiled", rows, verdict=said)
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
