"""Train a small GPT on random text, on one device or, under torchrun, on several.

A tiny one trains in seconds on a CPU; the other presets are for a GPU.

    python examples/gpt.py
    python examples/gpt.py --preset gpt2 --dtype bf16 --optimizer fused
    torchrun --nproc-per-node 2 examples/gpt.py --fsdp
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

DEVICE = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
"""This rank's own GPU where there is one."""


@dataclass(frozen=True)
class Shape:
    """Size of a GPT and of the text it is trained on."""

    layers: int
    heads: int
    dim: int
    vocabulary: int
    seq: int
    batch: int


PRESETS = {
    "tiny": Shape(2, 4, 64, 512, 32, 8),
    "gpt2": Shape(12, 12, 768, 50257, 1024, 16),
    "gpt2-medium": Shape(24, 16, 1024, 50257, 1024, 8),
}


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.dim, 3 * shape.dim)
        self.out = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(shape.dim)
        self.attention = Attention(shape)
        self.before_mlp = nn.LayerNorm(shape.dim)
        self.mlp = nn.Sequential(nn.Linear(shape.dim, 4 * shape.dim), nn.GELU(), nn.Linear(4 * shape.dim, shape.dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """``recompute`` keeps only each block's input for the backward pass, and computes the block again there."""

    def __init__(self, shape: Shape, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.words = nn.Embedding(shape.vocabulary, shape.dim)
        self.places = nn.Embedding(shape.seq, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last_norm = nn.LayerNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.last_norm(x))


def make_step(
    preset: str | None = None,
    batch: int | None = None,
    device: str = DEVICE,
    dtype: str = "fp32",
    optimizer: str = "auto",
    accumulate: int = 1,
    recompute: bool = False,
    compile: bool = False,
    ddp: bool = False,
    fsdp: bool = False,
) -> Callable[[], Tensor]:
    """Model, optimizer and one random batch; returns what trains on it once."""
    shape = PRESETS[preset or ("tiny" if device == "cpu" else "gpt2")]
    if shape is PRESETS["tiny"]:
        torch.set_num_threads(1)  # so small a step takes no less time on several, and much more where others are busy
    batch, kind = batch or shape.batch, torch.device(device).type
    with torch.device(device):
        model = wrapped(GPT(shape, recompute), ddp, fsdp)
        text = torch.randint(shape.vocabulary, (batch, shape.seq + 1))
    run = torch.compile(model) if compile else model
    walk = {"auto": {}, "loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[optimizer]
    optim = torch.optim.AdamW(model.parameters(), lr=3e-4, **walk)

    def step() -> Tensor:
        optim.zero_grad()
        for part in text.chunk(accumulate):
            with torch.autocast(kind, torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext():
                guess = run(part[:, :-1])
                loss = functional.cross_entropy(guess.flatten(0, 1), part[:, 1:].flatten())
            (loss / accumulate).backward()
        optim.step()
        return loss.detach()

    return step


def wrapped(model: GPT, ddp: bool, fsdp: bool) -> nn.Module:
    """The model as its ranks share it: whole on each, in shards, or alone."""
    if ddp:
        return DistributedDataParallel(model)
    if fsdp:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def main() -> None:
    from training import options, process_group, train  # the step above needs nothing but PyTorch

    parser = options(__doc__, PRESETS)
    parser.add_argument("--optimizer", choices=["auto", "loop", "foreach", "fused"], help="how AdamW walks the weights")
    parser.add_argument("--accumulate", type=int, help="backward passes a step, each over a part of the batch")
    parser.add_argument("--recompute", action="store_true", help="checkpoint the activations of each block")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--ddp", action="store_true", help="one replica a rank, under torchrun")
    parser.add_argument("--fsdp", action="store_true", help="weights in shards (FSDP2), under torchrun")
    args = vars(parser.parse_args())
    torch.manual_seed(0)
    steps = args.pop("steps")
    many = "ddp" in args or "fsdp" in args
    with process_group(args.get("device", DEVICE)) if many else contextlib.nullcontext():
        train(make_step(**args), steps)


if __name__ == "__main__":
    main()
