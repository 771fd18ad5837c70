"""DeepSeek V2 and V3 in bfloat16 as Megatron-LM trains them: latent attention, dropless experts by grouped GEMMs.

foretrace predict --on b200 --parallel data=8,experts=8,zero1,mixed,microbatches=4 --set fuse=elementwise -- python
benchmarks/models/megatron_moe.py --preset v2 --layers 4 --batch 4
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron_llama import SwiGLU, rotated
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Size of a DeepSeek: the first layers are dense, the others have routed and shared experts."""

    layers: int
    dim: int
    heads: int
    hidden: int
    experts: int
    chosen: int
    expert_hidden: int
    shared_hidden: int
    vocabulary: int
    query_rank: int = 1536
    key_rank: int = 512
    plain: int = 128
    """Width of a head without positions, and of its values."""
    turned: int = 64
    """Width of its part with positions."""
    dense: int = 1


SHAPES = {
    "tiny": Shape(4, 64, 2, 128, 8, 2, 32, 32, 512, 32, 16, 16, 8),
    "v2": Shape(60, 5120, 128, 12288, 160, 6, 1536, 3072, 102400),
    "v3": Shape(61, 7168, 128, 18432, 256, 8, 2048, 2048, 129280),
}


class Attention(nn.Module):
    """Queries, keys and values through narrow projections; all heads share the part of keys that has positions."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape, wide = s, s.plain + s.turned
        self.query_down = nn.Linear(s.dim, s.query_rank, bias=False)
        self.query_up = nn.Linear(s.query_rank, s.heads * wide, bias=False)
        self.key_down = nn.Linear(s.dim, s.key_rank + s.turned, bias=False)
        self.key_up = nn.Linear(s.key_rank, s.heads * 2 * s.plain, bias=False)
        self.query_norm, self.key_norm = nn.RMSNorm(s.query_rank), nn.RMSNorm(s.key_rank)
        self.out = nn.Linear(s.heads * s.plain, s.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s = self.shape
        query = self.query_up(self.query_norm(self.query_down(x))).unflatten(-1, (s.heads, -1))
        plain, turned = query.split([s.plain, s.turned], dim=-1)
        query = torch.cat((plain, rotated(turned, cos, sin)), dim=-1)
        latent, turned = self.key_down(x).split([s.key_rank, s.turned], dim=-1)
        key, value = self.key_up(self.key_norm(latent)).unflatten(-1, (s.heads, -1)).split(s.plain, dim=-1)
        turned = rotated(turned.unsqueeze(2), cos, sin).expand(-1, -1, s.heads, -1)
        key = torch.cat((key, turned), dim=-1)
        heads = (part.transpose(1, 2) for part in (query, key, value.contiguous()))
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(SwiGLU.apply(self.gate(x), self.up(x)))


class Combined(torch.autograd.Function):
    """Rows added up by token; their places are all that is saved."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, rows: Tensor, like: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return torch.zeros_like(like).index_add(0, rows, made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None, None


class Experts(nn.Module):
    """Each token goes to some experts and to the shared ones; rows are sorted by expert, and none is dropped."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.shape = s
        self.router = nn.Linear(s.dim, s.experts, bias=False)
        self.up = nn.Parameter(torch.empty(s.experts, s.dim, 2 * s.expert_hidden).normal_(std=0.02))
        self.down = nn.Parameter(torch.empty(s.experts, s.expert_hidden, s.dim).normal_(std=0.02))
        self.shared = MLP(s.dim, s.shared_hidden)

    def forward(self, given: Tensor) -> Tensor:
        s, x = self.shape, given.flatten(0, 1)
        weights, chosen = self.router(x).softmax(-1, dtype=torch.float32).topk(s.chosen, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.bincount(chosen.flatten(), minlength=s.experts).cumsum(0).int()
        rows = order // s.chosen
        gate, up = torch._grouped_mm(x.index_select(0, rows), self.up, offs=ends).chunk(2, dim=-1)
        made = torch._grouped_mm(SwiGLU.apply(gate, up), self.down, offs=ends)
        made = made * weights.flatten().index_select(0, order).unsqueeze(-1).to(made.dtype)
        return Combined.apply(made, rows, x.detach()).view_as(given) + self.shared(given)


class Layer(nn.Module):
    def __init__(self, s: Shape, number: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(s.dim), nn.RMSNorm(s.dim)
        self.attention = Attention(s)
        self.mlp = MLP(s.dim, s.hidden) if number < s.dense else Experts(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), cos, sin)
        return x + self.mlp(self.before_mlp(x))


class DeepSeek(nn.Module):
    def __init__(self, s: Shape, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(s.vocabulary, s.dim)
        self.layers = nn.ModuleList(Layer(s, number) for number in range(s.layers))
        self.norm, self.output = nn.RMSNorm(s.dim), nn.Linear(s.dim, s.vocabulary, bias=False)
        turns = torch.outer(torch.arange(length), 10000.0 ** -(torch.arange(0, s.turned, 2) / s.turned)).float()
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
    parser.add_argument("--seq", type=int)
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()
    shape = SHAPES[args.preset]
    shape = replace(shape, layers=args.layers or shape.layers)
    length = args.seq or (32 if args.preset == "tiny" else 4096)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        model = DeepSeek(shape, length).bfloat16()
        text = torch.randint(shape.vocabulary, (args.batch, length + 1))
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(text[:, :-1])
        functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
