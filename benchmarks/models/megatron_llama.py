"""Llama 3 in bfloat16 as Megatron-LM with TransformerEngine trains it: joint projections, fused norms, fused loss.

foretrace predict --on b200 --parallel data=4,tensor=2,sequence,zero1,mixed,microbatches=4 -- python
benchmarks/models/megatron_llama.py --preset 70b --layers 12 --batch 4
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from llama_shapes import SHAPES, Shape
from torch import Tensor, nn
from torch.nn import functional


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-two, one), dim=-1) * sin


class SwiGLU(torch.autograd.Function):
    """Saves its inputs only, as Megatron's fused one."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        gate, up = ctx.saved_tensors  # type: ignore[attr-defined]
        part = torch.sigmoid(gate)
        return grad * up * part * (1 + gate * (1 - part)), grad * gate * part


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.dim // shape.heads
        self.before_attention, self.before_mlp = nn.RMSNorm(shape.dim), nn.RMSNorm(shape.dim)
        self.q = nn.Linear(shape.dim, shape.dim, bias=False)
        self.k, self.v = (nn.Linear(shape.dim, shape.key_heads * self.width, bias=False) for _ in range(2))
        self.out = nn.Linear(shape.dim, shape.dim, bias=False)
        self.gate, self.up = (nn.Linear(shape.dim, shape.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.hidden, shape.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), cos, sin)
        given = self.before_mlp(x)
        return x + self.down(SwiGLU.apply(self.gate(given), self.up(given)))

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.width)) for layer in (self.q, self.k, self.v))
        heads = (part.transpose(1, 2) for part in (rotated(q, cos, sin), rotated(k, cos, sin), v))
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class Llama(nn.Module):
    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.dim)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm, self.output = nn.RMSNorm(shape.dim), nn.Linear(shape.dim, shape.vocabulary, bias=False)
        width = shape.dim // shape.heads
        turns = torch.outer(torch.arange(length), 500000.0 ** -(torch.arange(0, width, 2) / width)).float()
        turns = torch.cat((turns, turns), dim=-1)[:, None]
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=list(SHAPES), default="tiny")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--key-heads", type=int)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    shape = SHAPES[args.preset]
    shape = replace(shape, layers=args.layers or shape.layers, key_heads=args.key_heads or shape.key_heads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = Llama(shape, args.seq).bfloat16()
        text = torch.randint(shape.vocabulary, (args.batch, args.seq + 1))
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(text[:, :-1])
        functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
