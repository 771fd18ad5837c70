"""Llama 3 in bfloat16 as torchtitan trained it at the end of 2024: keys and values repeated, norms of several calls.

In PyTorch 2.6 an RMSNorm was no kernel of its own; the optimizer updated lists of weights; gradients were clipped.

foretrace predict --on h100 --parallel data=8,sharded,mixed -- python benchmarks/models/llama.py --preset 8b --batch 2
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from float8 import linears
from llama_shapes import SHAPES, Shape
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

TINY_SEQ, SEQ = 32, 8192
"""Tokens of a text: of the tiny one, and as torchtitan's default."""


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        full = x.float()
        return (full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def repeated(x: Tensor, times: int) -> Tensor:
    return x[:, :, :, None].expand(-1, -1, -1, times, -1).flatten(2, 3)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles[: x.shape[1], None]).flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self, shape: Shape, float8: bool) -> None:
        super().__init__()
        self.float8 = float8
        self.width = shape.dim // shape.heads
        self.q, self.out = (nn.Linear(shape.dim, shape.dim, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(shape.dim, shape.key_heads * self.width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        made = linears(x, (self.q, self.k, self.v), self.float8)
        q, k, v = (each.unflatten(-1, (-1, self.width)) for each in made)
        q, k = rotated(q, angles), rotated(k, angles)
        times = q.shape[2] // k.shape[2]
        heads = (part.transpose(1, 2) for part in (q, repeated(k, times), repeated(v, times)))
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return linears(seen.transpose(1, 2).flatten(-2), (self.out,), self.float8)[0]


class Block(nn.Module):
    def __init__(self, shape: Shape, float8: bool) -> None:
        super().__init__()
        self.float8 = float8
        self.attention, self.before_attention = Attention(shape, float8), RMSNorm(shape.dim)
        self.before_mlp = RMSNorm(shape.dim)
        self.gate, self.up = (nn.Linear(shape.dim, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.dim, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), angles)
        gate, up = linears(self.before_mlp(x), (self.gate, self.up), self.float8)
        return x + linears(functional.silu(gate) * up, (self.down,), self.float8)[0]


KEPT = (torch.ops.aten._scaled_dot_product_cudnn_attention.default, torch.ops.aten.linalg_vector_norm.default)
"""Attention, and the largest elements that scale tensors in float8."""
GEMMS = (torch.ops.aten.mm.default, torch.ops.aten._scaled_mm.default)


def half_of_the_gemms() -> object:
    """torchtitan's selective recomputation: attention is kept, and every second GEMM; everything else is done again."""
    seen = {True: 0, False: 0}

    def policy(context: SelectiveCheckpointContext, op: object, *_: object, **__: object) -> CheckpointPolicy:
        if op in GEMMS:
            seen[context.is_recompute] += 1
        kept = op in KEPT or (op in GEMMS and seen[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Llama(nn.Module):
    """``recompute`` keeps only each block's input for the backward pass, or some more (``selective``)."""

    def __init__(self, shape: Shape, seq: int, recompute: str, float8: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.words = nn.Embedding(shape.vocabulary, shape.dim)
        self.layers = nn.ModuleList(Block(shape, float8) for _ in range(shape.layers))
        self.norm, self.output = RMSNorm(shape.dim), nn.Linear(shape.dim, shape.vocabulary, bias=False)
        width = shape.dim // shape.heads
        turns = torch.outer(torch.arange(seq), 500000.0 ** -(torch.arange(0, width, 2) / width)).float()
        self.register_buffer("angles", torch.polar(torch.ones_like(turns), turns), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        for layer in self.layers:
            if not self.recompute:
                x = layer(x, self.angles)
                continue
            kept = {"context_fn": half_of_the_gemms} if self.recompute == "selective" else {}
            x = checkpoint(layer, x, self.angles, use_reentrant=False, **kept)
        return self.output(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=list(SHAPES), default="tiny")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seq", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--recompute", choices=["full", "selective"], default="")
    parser.add_argument("--float8", action="store_true", help="linear layers of the blocks in float8")
    args = parser.parse_args()
    shape = SHAPES[args.preset]
    shape = replace(shape, layers=args.layers or shape.layers)
    seq = args.seq or (TINY_SEQ if args.preset == "tiny" else SEQ)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = Llama(shape, seq, args.recompute, args.float8)
        angles = model.angles
        model.bfloat16().angles = angles
        text = torch.randint(shape.vocabulary, (args.batch, seq + 1))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()


if __name__ == "__main__":
    main()
