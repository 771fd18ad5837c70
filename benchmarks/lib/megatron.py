"""A GPT as Megatron-LM trains it, in half precision: what `parallelize` makes the published runs of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from foretrace.graph import Graph
from foretrace.record.sketch.sketch import sketch

VOCABULARY = 51200
"""GPT's 50,257 words, padded so that up to eight ranks share them evenly."""


class Layer(nn.Module):
    """Megatron's: one product for queries, keys and values, the softmax of whole scores, dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.dropout(self.attention(self.before_attention(x)), 0.1)
        return x + functional.dropout(self.down(functional.gelu(self.up(self.before_mlp(x)))), 0.1)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1) for part in self.qkv(x).chunk(3, dim=-1)
        )
        seen = functional.dropout(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), 0.1)
        mixed = torch.bmm(seen, v).unflatten(0, (batch, self.heads)).transpose(1, 2)
        return self.dense(mixed.reshape(batch, length, width))


class GPT(nn.Module):
    """Words and places in, scores of all words out."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.last_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text: Tensor) -> Tensor:
        x = functional.dropout(self.words(text) + self.places(torch.arange(text.shape[1], device=text.device)), 0.1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.last_norm(x))


def step(layers: int, width: int, heads: int, length: int, samples: int) -> Graph:
    """The sketch of one step of one rank that has the whole model."""

    def build() -> Callable[[], None]:
        with torch.device("cuda"):
            model = GPT(layers, width, heads, length).half()
            text = torch.randint(VOCABULARY, (samples, length + 1))
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)

        def train() -> None:
            optimizer.zero_grad()
            scores = model(text[:, :-1]).float()
            functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()).backward()
            optimizer.step()

        return train

    return sketch(build, device="cuda")
