"""Measures what `benchmarks.claims.accuracy.edits_recorded` is held to: steps of the examples as they are, and with one
thing changed.

Each step is built and recorded in a process of its own, since a profiler slows all launches of a process from then on.
On a GPU all of them take four minutes. What is there already is left out, so that it can be stopped and gone on with.

    python -m benchmarks.truth.edits_truth OUT                            # a tar of recordings for each model
    python -m benchmarks.truth.edits_truth OUT dlrm gpt/batch-32          # one model, and one step of another
    python -m benchmarks.truth.edits_truth OUT resnet --device cpu        # small ones, to try it
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from foretrace.record.watch.session import record_step

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_SECONDS = 60
"""What a recording may take."""
TABLES = 8

PRESETS = {"dlrm": "default", "bert": "base", "gpt": "gpt2", "resnet": "resnet50"}
BEFORE: dict[str, dict[str, Any]] = {
    "dlrm": {"batch": 2048},
    "bert": {"batch": 16, "seq": 128},
    "gpt": {"batch": 8, "seq": 256, "optimizer": "foreach"},
    "resnet": {"batch": 32},
}
"""Each model before it is changed: parts of its shape, and options of its step."""
SMALL: dict[str, dict[str, Any]] = {
    "dlrm": {"rows": (1000,) * TABLES},
    "bert": {"layers": 2, "vocabulary": 512},
    "gpt": {"layers": 2, "vocabulary": 512},
    "resnet": {"blocks": (1, 1), "pixels": 32},
}
"""What is smaller where there is no GPU."""


@dataclass(frozen=True)
class Changed:
    """A step that differs from its model's first one, and the edits that lead to it and back; none where none does."""

    there: str
    back: str
    parts: dict[str, Any]

    @property
    def name(self) -> str:
        """Of its recording."""
        return self.there.replace(":", "-").replace("=", "-").replace("*", "all")


# A shorter text leaves the table of positions as it is: there is no way back from a longer one.
CHANGED: dict[str, list[Changed]] = {
    "dlrm": [
        Changed("batch=512", "batch=2048", {"batch": 512}),
        Changed("rows=100000", "rows=1000000", {"rows": (100_000,) * TABLES}),
        Changed("pooling=20", "pooling=100", {"pooling": 20}),
        Changed("dim=128", "dim=64", {"dim": 128, "bottom": (512, 512, 128)}),
        Changed("width:dense.top.0=2048", "width:dense.top.0=1024", {"top": (2048, 1024, 1024, 1)}),
        Changed("autocast=bf16", "dtype=fp32", {"dtype": "bf16"}),
    ],
    "bert": [
        Changed("batch=32", "batch=16", {"batch": 32}),
        Changed("seq=256", "", {"seq": 256}),
        Changed("heads=16", "heads=12", {"heads": 16}),
        Changed("hidden=1536", "hidden=768", {"dim": 1536}),
        Changed("autocast=bf16", "dtype=fp32", {"dtype": "bf16"}),
        Changed("dtype=bf16", "dtype=fp32", {"weights": "bfloat16"}),
    ],
    "gpt": [
        Changed("batch=32", "batch=8", {"batch": 32}),
        Changed("seq=1024", "", {"seq": 1024}),
        Changed("depth=6", "depth=12", {"layers": 6}),
        Changed("optimizer=fused", "optimizer=foreach", {"optimizer": "fused"}),
        Changed("optimizer=loop", "optimizer=foreach", {"optimizer": "loop"}),
        Changed("checkpoint=*", "", {"recompute": True}),
        Changed("autocast=bf16", "dtype=fp32", {"dtype": "bf16"}),
    ],
    "resnet": [
        Changed("batch=128", "batch=32", {"batch": 128}),
        Changed("autocast=bf16", "dtype=fp32", {"dtype": "bf16"}),
        Changed("dtype=fp16", "dtype=fp32", {"weights": "float16"}),
    ],
}
FIRST = "before"
"""Name of the recording of a step that nothing is changed in."""


def steps_of(asked: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps of a model, or the one that is named behind it, by the names of their recordings."""
    model, _, only = asked.partition("/")
    named = {FIRST: {}, **{changed.name: changed.parts for changed in CHANGED[model]}}
    yield from ((name, parts) for name, parts in named.items() if only in ("", name))


def built(model: str, parts: dict[str, Any], device: str) -> Callable[[], Any]:
    """A step of an example with parts of its shape, its options, or the type of its weights set."""
    sys.path.insert(0, str(EXAMPLES))
    # Only here: asking for a GPU, as the examples do, would spoil it for every process that is forked from this one.
    example = importlib.import_module(model)
    preset = example.PRESETS[PRESETS[model]]
    parts = {**BEFORE[model], **(SMALL[model] if device == "cpu" else {}), **parts}
    weights = getattr(torch, parts.pop("weights", "float32"))
    shape = {field.name: parts.pop(field.name) for field in fields(preset) if field.name in parts}
    torch.set_default_dtype(weights)
    try:
        with patch.dict(example.PRESETS, {"changed": replace(preset, **shape)}):
            step: Callable[[], Any] = example.make_step(preset="changed", device=device, **parts)
            return step
    finally:
        torch.set_default_dtype(torch.float32)


def recorded(model: str, parts: dict[str, Any], device: str, folder: Path) -> None:
    """Build a step and record it."""
    torch.manual_seed(0)
    plain, warmup = (1, 1) if device == "cpu" else (12, 4)
    record_step(built(model, parts, device), folder, plain=plain, profile=1, warmup=warmup)


def kept(archive: Path, name: str, model: str, parts: dict[str, Any], device: str) -> bool:
    """Record a step in a process of its own and add it to an archive; whether that worked."""
    with TemporaryDirectory() as work:
        folder = Path(work) / name
        process = multiprocessing.get_context("fork").Process(target=recorded, args=(model, parts, device, folder))
        process.start()
        process.join(MOST_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode:
            return False
        with tarfile.open(archive, "a") as tar:
            tar.add(folder, name)
    return True


def there(archive: Path) -> set[str]:
    """Recordings that an archive holds."""
    if not archive.exists():
        return set()
    with tarfile.open(archive) as tar:
        return {name.partition("/")[0] for name in tar.getnames()}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("steps", nargs="*", default=list(CHANGED), help="MODEL, or MODEL/STEP")
    options.add_argument("--device", default="cuda")
    chosen = options.parse_intermixed_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for asked in chosen.steps:
        model = asked.partition("/")[0]
        archive = chosen.out / f"{model}.tar"
        done = there(archive)
        for name, parts in steps_of(asked):
            if name in done:
                continue
            begun = time.monotonic()
            worked = kept(archive, name, model, parts, chosen.device)
            failed += not worked
            print(model, name, f"{time.monotonic() - begun:.1f} s" if worked else "left out", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
