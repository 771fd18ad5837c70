"""Measures what `benchmarks.claims.replay.compiled_replay` is held to: compiled training jobs, recorded through the
command line and replayed.

On a GPU, with Triton. Each job is recorded, run without the recorder (its losses must be the same, or differ from run
to run without it as well), and replayed. Some 80 seconds a job.

    python -m benchmarks.truth.compiled_replay_truth OUT [--seconds 540] [--mode reduce-overhead] [JOB …]

writes a line a job into ``OUT/compiled_replay.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

RESULT = "compiled_replay.jsonl"
STEPS = 50
SCHEDULE = ("--warmup", "6", "--plain", "12", "--profile", "2")
SHOWN_LOSSES = 24


class Block(nn.Module):
    """A transformer's layer; with `rms` as Llama has it, its heads in groups."""

    def __init__(self, width: int, heads: int, causal: bool, rms: bool, groups: int) -> None:
        super().__init__()
        norm = nn.RMSNorm if rms else nn.LayerNorm
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.size, self.repeats, self.causal = width // heads, groups, causal
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, width // groups), nn.Linear(width, width // groups)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate = nn.Linear(width, 4 * width) if rms else None
        self.drop = nn.Dropout(0.0 if rms else 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.norms[0](x)
        q, k, v = (
            each(y).view(batch, length, -1, self.size).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        if self.repeats > 1:
            k, v = (each.repeat_interleave(self.repeats, 1) for each in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        y = self.norms[1](x)
        y = F.silu(self.gate(y)) * self.wide(y) if self.gate is not None else F.gelu(self.wide(y))
        return x + self.drop(self.narrow(y))


class Language(nn.Module):
    """Some layers between an embedding and a head."""

    def __init__(self, causal: bool, rms: bool = False, groups: int = 1) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50304, 768), nn.Linear(768, 50304, bias=False)
        self.blocks = nn.Sequential(*(Block(768, 12, causal, rms, groups) for _ in range(12)))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.blocks(self.words(words))).float().flatten(0, 1), words.flatten())


class Residual(nn.Module):
    """A ResNet's basic block."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.Conv2d(a, after, 3, s, 1, bias=False), nn.BatchNorm2d(after))
            for a, s in ((before, stride), (after, 1))
        )
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.short(x))


class Images(nn.Module):
    """A small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        widths = [64, 64, 128, 256, 512]
        self.stem, self.head = nn.Conv2d(3, 64, 7, 4, 3), nn.Linear(512, 1000)
        pairs = list(pairwise(widths))
        self.blocks = nn.Sequential(
            *(each for a, b in pairs for each in (Residual(a, b, 2 if a != b else 1), Residual(b, b, 1)))
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(images)).mean((2, 3))), labels)


class Recommender(nn.Module):
    """A DLRM with dense gradients."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 128) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + tables * (tables + 1) // 2, 1024), nn.ReLU(), nn.Linear(1024, 1))
        self.register_buffer("places", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, ids: list[torch.Tensor], clicked: torch.Tensor) -> torch.Tensor:
        every = torch.stack([self.bottom(dense), *(table(each) for table, each in zip(self.tables, ids))], 1)
        places: Any = self.places
        pairs = (every @ every.transpose(1, 2))[:, places[0], places[1]]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([every[:, 0], pairs], 1)).squeeze(1), clicked)


class Denoiser(nn.Module):
    """A UNet of two levels."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.enter = _normed(3, width)
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), _normed(2 * width, 2 * width))
        self.middle, self.up = _normed(2 * width, 2 * width), _normed(3 * width, width)
        self.leave = nn.Conv2d(width, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        high = self.enter(images)
        low = F.interpolate(self.middle(self.down(high)), scale_factor=2)
        return F.mse_loss(self.leave(self.up(torch.cat([high, low], 1))), images)


def _normed(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, 1, 1), nn.GroupNorm(8, after), nn.SiLU())


def _words() -> tuple[torch.Tensor]:
    return (torch.randint(50304, (8, 1024), device="cuda"),)


def _images() -> tuple[torch.Tensor, ...]:
    images = torch.randn(128, 3, 224, 224, device="cuda").contiguous(memory_format=torch.channels_last)
    return images, torch.randint(1000, (128,), device="cuda")


def _clicks() -> tuple[Any, ...]:
    ids = [torch.randint(100_000, (4096, 4), device="cuda") for _ in range(26)]
    return torch.randn(4096, 13, device="cuda"), ids, torch.rand(4096, device="cuda")


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "gpt": (lambda: Language(causal=True), _words),
    "resnet": (lambda: Images().to(memory_format=torch.channels_last), _images),
    "dlrm": (Recommender, _clicks),
    "llama": (lambda: Language(causal=True, rms=True, groups=4), _words),
    "unet": (Denoiser, lambda: (torch.randn(16, 3, 128, 128, device="cuda"),)),
    "bert": (lambda: Language(causal=False), _words),
}
"""A model and its batch, by name."""


def train(job: str, mode: str) -> None:
    """What is recorded: an ordinary training script."""
    torch.manual_seed(0)
    build, batch = JOBS[job]
    model, given = build().to("cuda"), batch()
    update = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = torch.compile(model, mode=None if mode == "default" else mode)
    losses = []
    for _ in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(*given)
        loss.backward()
        update.step()
        update.zero_grad()
        losses.append(loss.detach().clone())
    print("losses", [round(float(loss), 6) for loss in losses[:SHOWN_LOSSES]])


def called(*words: Any) -> subprocess.CompletedProcess[str]:
    """Run Python."""
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)


def measured(job: str, mode: str, out: Path) -> dict[str, Any]:
    """Record a job, run it alone, and replay the recording."""
    folder = out / f"{job}-{mode}"
    script = ["-m", "benchmarks.truth.compiled_replay_truth", str(out), "--train", job, "--mode", mode]
    recorded = called("-m", "foretrace", "record", "--out", folder, *SCHEDULE, "--", sys.executable, *script)
    alone = called(*script)
    row: dict[str, Any] = {"job": job, "mode": mode, "exit": recorded.returncode}
    row["same_losses"] = bool(alone.stdout) and alone.stdout == recorded.stdout.replace("\r", "")
    if not row["same_losses"]:
        row["differs_alone"] = called(*script).stdout != alone.stdout
    replayed = called("-m", "foretrace", "replay", folder, "--json")
    if replayed.returncode:
        return {**row, "failed": replayed.stderr.strip()[-300:]}
    found = json.loads(replayed.stdout)
    row |= {key: found[key] for key in ("coverage", "stand_ins", "failures", "original")}
    return row | {key: found[key] for key in ("step_ms", "kernel_ms", "launches", "peak_memory_bytes")}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("jobs", nargs="*", metavar="JOB")
    options.add_argument("--mode", default="default")
    options.add_argument("--seconds", type=float, default=540.0)
    options.add_argument("--train", help=argparse.SUPPRESS)
    chosen = options.parse_intermixed_args()
    if chosen.train:
        train(chosen.train, chosen.mode)
        return 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + chosen.seconds
    for job in chosen.jobs or JOBS:
        if time.monotonic() > end:
            print(f"{job}: no time left", flush=True)
            continue
        row = measured(job, chosen.mode, chosen.out)
        with (chosen.out / RESULT).open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
