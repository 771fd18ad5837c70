"""The language models that NeuSight timed, as ``transformers`` ran them then: attention in the open, float32, no cache.

Each is a step that a sketch can follow: inference, or forward and backward. Sizes are those of NeuSight's files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, gelu, relu, softmax

Step = Callable[[], None]


@dataclass(frozen=True)
class Size:
    """Of one model."""

    kind: str
    layers: int
    width: int
    heads: int
    words: int
    positions: int
    inner: int


SIZES = {
    "bert_large": Size("bert", 24, 1024, 16, 30522, 512, 4096),
    "gpt2_large": Size("gpt", 36, 1280, 20, 50257, 1024, 5120),
    "gpt3_xl": Size("gpt", 24, 3072, 24, 50257, 2048, 12288),
    "gpt3_27": Size("gpt", 32, 2560, 32, 50257, 2048, 10240),
    "opt_13": Size("opt", 24, 2048, 32, 50272, 2050, 8192),
    "switchxl4": Size("switch", 24, 1024, 32, 32128, 0, 16384),
}
SHARE = 0.1
"""That is dropped in training."""
HEAD, EXPERTS, CAPACITY = 128, 4, 64
"""Of the switch transformer: width of a head, experts of a layer, and words of a text that one of them takes."""


def make(model: str, training: bool, length: int, batch: int) -> Step:
    """A forward pass, or one forward and backward."""
    size = SIZES[model]
    net = KINDS[size.kind](size, training).to("cuda").train(training)
    ids = torch.ones(batch, length, dtype=torch.int64, device="cuda")

    def infer() -> None:
        with torch.no_grad():
            net(ids)

    def train() -> None:
        for parameter in net.parameters():
            parameter.grad = None
        scores = net(ids)
        cross_entropy(scores.view(-1, scores.shape[-1]), ids.view(-1)).backward()

    return train if training else infer


def attention(q: Tensor, k: Tensor, v: Tensor, masked: Callable[[Tensor], Tensor], training: bool) -> Tensor:
    """Scores, softmax and values as separate calls; heads come second."""
    share = softmax(masked(torch.matmul(q, k.transpose(-1, -2))), dim=-1)
    mixed = torch.matmul(dropout(share, SHARE, training), v)
    batch, _, length, _ = mixed.shape
    return mixed.permute(0, 2, 1, 3).reshape(batch, length, -1)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """Heads second."""
    return x.view(*x.shape[:-1], heads, x.shape[-1] // heads).permute(0, 2, 1, 3)


def positions(ids: Tensor) -> Tensor:
    """0, 1, 2, … for all."""
    return torch.arange(ids.shape[1], device=ids.device).unsqueeze(0)


class BertLayer(nn.Module):
    """Attention and two products, each with what was before it added and normed."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.out = (nn.Linear(size.width, size.width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(size.width, size.inner), nn.Linear(size.inner, size.width)
        self.after_attention, self.after_products = nn.LayerNorm(size.width), nn.LayerNorm(size.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (heads_of(part(x), self.heads) for part in (self.query, self.key, self.value))
        mixed = attention(q, k, v, lambda scores: scores / math.sqrt(q.shape[-1]) + mask, self.training)
        x = self.after_attention(dropout(self.out(mixed), SHARE, self.training) + x)
        return self.after_products(dropout(self.narrow(gelu(self.wide(x))), SHARE, self.training) + x)


class Bert(nn.Module):
    """A classifier in inference; in training a word is guessed at every place."""

    def __init__(self, size: Size, training: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.kinds, self.places = nn.Embedding(2, size.width), nn.Embedding(size.positions, size.width)
        self.norm, self.pooler = nn.LayerNorm(size.width), nn.Linear(size.width, size.width)
        self.layers = nn.ModuleList([BertLayer(size) for _ in range(size.layers)])
        self.classes = nn.Linear(size.width, 2)
        if training:
            self.turn, self.turned = nn.Linear(size.width, size.width), nn.LayerNorm(size.width)
            self.guess = nn.Linear(size.width, size.words)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (1.0 - torch.ones_like(ids)[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        x = self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.places(positions(ids))
        x = dropout(self.norm(x), SHARE, self.training)
        for layer in self.layers:
            x = layer(x, mask)
        classes = self.classes(dropout(torch.tanh(self.pooler(x[:, 0])), SHARE, self.training))
        return self.guess(self.turned(gelu(self.turn(x)))) if self.training else classes


class Conv1D(nn.Module):
    """A linear layer whose weights lie the other way round."""

    def __init__(self, made: int, given: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(given, made)), nn.Parameter(torch.empty(made))

    def forward(self, x: Tensor) -> Tensor:
        made = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return made.view(*x.shape[:-1], -1)


def new_gelu(x: Tensor) -> Tensor:
    """In eight calls."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class GptLayer(nn.Module):
    """Norms first, one product for queries, keys and values."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.both, self.out = Conv1D(3 * size.width, size.width), Conv1D(size.width, size.width)
        self.wide, self.narrow = Conv1D(size.inner, size.width), Conv1D(size.width, size.inner)
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        before = torch.ones(size.positions, size.positions, dtype=torch.bool).tril()
        self.register_buffer("before", before.view(1, 1, size.positions, size.positions))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, self.heads) for part in self.both(self.first(x)).split(x.shape[-1], dim=2))

        def masked(scores: Tensor) -> Tensor:
            length = scores.shape[-1]
            scores = scores / torch.full([], q.shape[-1] ** 0.5, dtype=scores.dtype, device=scores.device)
            least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
            return torch.where(self.before[:, :, :length, :length], scores, least)

        x = dropout(self.out(attention(q, k, v, masked, self.training)), SHARE, self.training) + x
        return x + dropout(self.narrow(new_gelu(self.wide(self.second(x)))), SHARE, self.training)


class Gpt(nn.Module):
    """GPT-2 and, larger, GPT-3."""

    def __init__(self, size: Size, training: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.positions, size.width)
        self.layers = nn.ModuleList([GptLayer(size) for _ in range(size.layers)])
        self.norm = nn.LayerNorm(size.width)

    def forward(self, ids: Tensor) -> Tensor:
        x = dropout(self.words(ids) + self.places(positions(ids)), SHARE, self.training)
        for layer in self.layers:
            x = layer(x)
        return torch.matmul(self.norm(x), self.words.weight.t())


class OptLayer(nn.Module):
    """Norms first; heads are laid side by side before they are multiplied."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.out = (nn.Linear(size.width, size.width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(size.width, size.inner), nn.Linear(size.inner, size.width)
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        normed = self.first(x)
        scaled = self.query(normed) * (width // self.heads) ** -0.5
        q, k, v = (
            heads_of(part, self.heads).contiguous().view(batch * self.heads, length, -1)
            for part in (scaled, self.key(normed), self.value(normed))
        )
        scores = torch.bmm(q, k.transpose(1, 2)).view(batch, self.heads, length, length) + mask
        scores = torch.max(scores, torch.full([], torch.finfo(scores.dtype).min, device=scores.device))
        share = softmax(scores.view(batch * self.heads, length, length), dim=-1)
        mixed = torch.bmm(share, v).view(batch, self.heads, length, -1).transpose(1, 2).reshape(batch, length, width)
        x = x + dropout(self.out(mixed), SHARE, self.training)
        flat = x.reshape(-1, width)
        made = self.narrow(relu(self.wide(self.second(flat))))
        return (flat + dropout(made, SHARE, self.training)).view(batch, length, width)


class Opt(nn.Module):
    """OPT."""

    def __init__(self, size: Size, training: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.words, size.width), nn.Embedding(size.positions, size.width)
        self.layers = nn.ModuleList([OptLayer(size) for _ in range(size.layers)])
        self.norm = nn.LayerNorm(size.width)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        least = torch.full((length, length), torch.finfo(torch.float32).min, device=ids.device)
        mask = least.triu(1)[None, None].expand(ids.shape[0], 1, length, length).contiguous()
        x = self.words(ids) + self.places(torch.cumsum(torch.ones_like(ids), dim=1) + 1)
        for layer in self.layers:
            x = layer(x, mask)
        return torch.matmul(self.norm(x), self.words.weight.t())


class RootNorm(nn.Module):
    """T5's norm, in five calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class SwitchAttention(nn.Module):
    """To the same words, or from the decoder's to the encoder's."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, inner = size.heads, size.heads * HEAD
        self.norm = RootNorm(size.width)
        self.query, self.key, self.value = (nn.Linear(size.width, inner, bias=False) for _ in range(3))
        self.out = nn.Linear(inner, size.width, bias=False)

    def forward(self, x: Tensor, bias: Tensor, others: Tensor | None = None) -> Tensor:
        normed = self.norm(x)
        seen = normed if others is None else others
        q, k, v = (
            heads_of(part(y), self.heads) for part, y in ((self.query, normed), (self.key, seen), (self.value, seen))
        )
        mixed = attention(q, k, v, lambda scores: scores.add_(bias), self.training)
        return x + dropout(self.out(mixed), SHARE, self.training)


class Expert(nn.Module):
    """Two products."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.wide, self.narrow = (
            nn.Linear(size.width, size.inner, bias=False),
            nn.Linear(size.inner, size.width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(dropout(relu(self.wide(x)), SHARE, self.training))


class Experts(nn.Module):
    """Of several experts, one for each word. All words are alike here: one expert is given as many as it may take."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.router = nn.Linear(size.width, EXPERTS, bias=False)
        self.experts = nn.ModuleList([Expert(size) for _ in range(EXPERTS)])

    def forward(self, x: Tensor) -> Tensor:
        chances = softmax(self.router(x), dim=-1)
        chosen = nn.functional.one_hot(chances.argmax(dim=-1), EXPERTS)
        mask = chosen * (chosen.cumsum(dim=-2) <= CAPACITY)
        made, words = x.clone(), x.view(-1, x.shape[-1])
        for number, expert in enumerate(self.experts):
            mask[:, :, number].bool().sum().item()  # how many words it is given, the host has to know
            if number == 0:
                ids = torch.arange(min(CAPACITY, x.shape[1]) * x.shape[0], device=x.device)
                made = made.view(-1, x.shape[-1]).index_put((ids,), expert(words[ids])).view(x.shape)
        return chances.max(dim=-1).values.unsqueeze(-1) * made


class SwitchLayer(nn.Module):
    """Attention, in the decoder to the encoder's words too, and products: every second layer has experts."""

    def __init__(self, size: Size, decodes: bool, has_experts: bool) -> None:
        super().__init__()
        self.itself, self.norm = SwitchAttention(size), RootNorm(size.width)
        self.across = SwitchAttention(size) if decodes else None
        self.products = Experts(size) if has_experts else Expert(size)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None, none: Tensor) -> Tensor:
        x = self.itself(x, bias)
        if self.across is not None:
            x = self.across(x, none, encoded)
        return x + dropout(self.products(self.norm(x)), SHARE, self.training)


class Switch(nn.Module):
    """An encoder and a decoder with experts."""

    def __init__(self, size: Size, training: bool) -> None:
        super().__init__()
        self.words, self.distances = nn.Embedding(size.words, size.width), nn.Embedding(32, size.heads)
        self.encoder, self.decoder = (
            nn.ModuleList([SwitchLayer(size, decodes, number % 2 == 1) for number in range(size.layers)])
            for decodes in (False, True)
        )
        self.norms = nn.ModuleList([RootNorm(size.width) for _ in range(2)])
        self.guess = nn.Linear(size.width, size.words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        apart = torch.zeros(length, length, dtype=torch.int64, device=ids.device)
        bias = self.distances(apart).permute(2, 0, 1).unsqueeze(0) + torch.zeros(
            ids.shape[0], 1, length, length, device=ids.device
        )
        none = torch.zeros(ids.shape[0], 1, 1, length, device=ids.device)
        encoded = None
        for norm, layers in zip(self.norms, (self.encoder, self.decoder)):
            x = dropout(self.words(ids), SHARE, self.training)
            for layer in layers:
                x = layer(x, bias, encoded, none)
            encoded = norm(x)
        assert encoded is not None
        return self.guess(encoded * encoded.shape[-1] ** -0.5)


KINDS: dict[str, Any] = {"bert": Bert, "gpt": Gpt, "opt": Opt, "switch": Switch}
