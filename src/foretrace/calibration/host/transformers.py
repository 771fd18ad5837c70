"""Small training steps of transformers: several kinds of attention, terse and verbose code, PyTorch's own layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from foretrace.calibration.host.training import Training, trained

WIDTH, HEADS, LENGTH, SEQUENCES, VOCABULARY = 64, 4, 16, 2, 512


class _RmsNorm(nn.Module):
    """RMS norm from single calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class _RotaryBlock(nn.Module):
    """Rotary positions, gated linear units, three GEMMs for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_gate = _RmsNorm(), _RmsNorm()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        y = self.before_attention(x)
        q, k, v = (made(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2) for made in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(_rotary(q, cos, sin), _rotary(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        y = self.before_gate(x)
        narrow: torch.Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + narrow


class _FusedQkvBlock(nn.Module):
    """One GEMM for query, key and value; dropout; pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norms[0](x)).split(WIDTH, dim=2)
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).contiguous().view(x.shape)))
        wide = F.gelu(self.wide(self.norms[1](x)), approximate="tanh")
        return x + torch.as_tensor(self.dropout(self.narrow(wide)))


class _UnfusedAttentionBlock(nn.Module):
    """Attention from GEMMs and a softmax, with a relative position bias and a mask; post-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.distance = nn.Embedding(2 * LENGTH, HEADS)
        self.dropout, self.norms = nn.Dropout(0.1), nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).permute(0, 2, 1, 3) for p in self.projections[:3])
        positions = torch.arange(x.shape[1], device=x.device)
        bias = self.distance(positions[None, :] - positions[:, None] + LENGTH).permute(2, 0, 1).unsqueeze(0)
        scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + bias
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = self.dropout(torch.softmax(scores.float(), dim=-1).type_as(scores))
        mixed = torch.matmul(weights, v).permute(0, 2, 1, 3).flatten(2)
        x = self.norms[0](x + self.projections[3](mixed))
        return torch.as_tensor(self.norms[1](x + self.feed(x)))


@dataclass
class _Settings:
    """The configuration object of a verbose model."""

    width: int = WIDTH
    heads: int = HEADS
    dropout: float = 0.1
    causal: bool = False
    attention: str = "fused"
    keep_weights: bool = False


@dataclass
class _Result:
    """The output object of a verbose model."""

    hidden: torch.Tensor
    all_hidden: tuple[torch.Tensor, ...] | None = None
    weights: tuple[torch.Tensor, ...] | None = None


def _fused_attention(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, None]:
    dropout = options.get("dropout", 0.0) if module.training else 0.0
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=options.get("scale"))
    return mixed.transpose(1, 2).contiguous(), None


ATTENTIONS = {"fused": _fused_attention}


class _VerboseSelf(nn.Module):
    def __init__(self, settings: _Settings) -> None:
        super().__init__()
        if settings.width % settings.heads:
            raise ValueError("heads must divide the width")
        self.settings = settings
        self.size = settings.width // settings.heads
        self.query, self.key, self.value = (nn.Linear(settings.width, settings.width) for _ in range(3))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None, **options: Any) -> tuple[Any, Any]:
        shape = (*hidden.shape[:-1], -1, self.size)
        q = self.query(hidden).view(shape).transpose(1, 2)
        k = self.key(hidden).view(shape).transpose(1, 2)
        v = self.value(hidden).view(shape).transpose(1, 2)
        attend = ATTENTIONS.get(self.settings.attention, _fused_attention)
        mixed, weights = attend(self, q, k, v, mask, dropout=self.settings.dropout, scale=self.size**-0.5, **options)
        return mixed.reshape(*hidden.shape[:-1], -1).contiguous(), weights


class _VerboseOutput(nn.Module):
    def __init__(self, settings: _Settings, given: int) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(given, settings.width), nn.LayerNorm(settings.width, eps=1e-12)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, hidden: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.dense(hidden))
        return torch.as_tensor(self.norm(hidden + before))


class _VerboseLayer(nn.Module):
    def __init__(self, settings: _Settings) -> None:
        super().__init__()
        self.attention, self.attention_output = _VerboseSelf(settings), _VerboseOutput(settings, settings.width)
        self.wide, self.activation = nn.Linear(settings.width, 2 * settings.width), nn.GELU()
        self.output = _VerboseOutput(settings, 2 * settings.width)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None = None, **options: Any) -> tuple[Any, ...]:
        mixed, *rest = self.attention(hidden, mask=mask, **options)
        mixed = self.attention_output(mixed, hidden)
        return (self.output(self.activation(self.wide(mixed)), mixed), *rest)


class _VerboseModel(nn.Module):
    """Configuration objects, options passed all the way down, results as objects: how model libraries are written."""

    def __init__(self, settings: _Settings, layers: int) -> None:
        super().__init__()
        self.settings = settings
        self.tokens, self.positions = nn.Embedding(VOCABULARY, settings.width), nn.Embedding(LENGTH, settings.width)
        self.norm, self.dropout = nn.LayerNorm(settings.width), nn.Dropout(settings.dropout)
        self.layers = nn.ModuleList(_VerboseLayer(settings) for _ in range(layers))
        self.head = nn.Linear(settings.width, VOCABULARY)

    def forward(
        self, tokens: torch.Tensor, keep_hidden: bool | None = None, labels: torch.Tensor | None = None, **options: Any
    ) -> tuple[torch.Tensor | None, _Result]:
        keep_hidden = keep_hidden if keep_hidden is not None else self.settings.keep_weights
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        hidden = self.dropout(self.norm(self.tokens(tokens) + self.positions(positions)))
        all_hidden: tuple[torch.Tensor, ...] = ()
        for layer in self.layers:
            all_hidden = (*all_hidden, hidden) if keep_hidden else all_hidden
            hidden = layer(hidden, mask=None, **options)[0]
        result = _Result(hidden, all_hidden or None)
        if labels is None:
            return None, result
        logits = self.head(result.hidden)
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1), ignore_index=-100), result


BLOCKS = {"turning": _RotaryBlock, "joined": _FusedQkvBlock, "spelled out": _UnfusedAttentionBlock}


def attention(
    device: Any, kind: str, autocast: bool, optimizer: str = "adamw", recompute: bool = False, layers: int = 4
) -> Training:
    """A language model of blocks of one kind."""
    tokens, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
    blocks = nn.ModuleList(BLOCKS[kind]() for _ in range(layers))
    model = nn.ModuleList([tokens, blocks, nn.LayerNorm(WIDTH), head]).to(device)
    text = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), device=device)
    extra = _extra(kind, device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            x = tokens(text)
            for block in blocks:
                x = checkpoint(block, x, *extra, use_reentrant=False) if recompute else block(x, *extra)
            logits = head(model[2](x))
            return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), text[:, 1:].reshape(-1))

    return trained(model, loss, optimizer)


def _extra(kind: str, device: Any) -> tuple[torch.Tensor, ...]:
    """Arguments of the blocks of a kind besides the sequence."""
    if kind == "turning":
        size = WIDTH // HEADS
        angles = torch.outer(torch.arange(LENGTH), 100.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        return angles.cos().to(device), angles.sin().to(device)
    return (torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1),) if kind == "spelled out" else ()


def verbose(device: Any, autocast: bool, optimizer: str = "adamw") -> Training:
    """A language model written like those of model libraries."""
    model = _VerboseModel(_Settings(), layers=4).to(device).train()
    text = torch.randint(VOCABULARY, (SEQUENCES, LENGTH), device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            found, _ = model(tokens=text, labels=text, keep_hidden=False)
        assert found is not None
        return found

    return trained(model, loss, optimizer)


def library(device: Any, autocast: bool, decoder: bool) -> Training:
    """PyTorch's own transformer layers."""
    sizes: dict[str, Any] = {"dim_feedforward": 2 * WIDTH, "batch_first": True, "device": device}
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    model = nn.ModuleList(kind(WIDTH, HEADS, **sizes) for _ in range(3))
    inputs, memory = (torch.randn(SEQUENCES, LENGTH, WIDTH, device=device) for _ in range(2))

    def loss() -> torch.Tensor:
        x = inputs
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            for layer in model:
                x = layer(x, memory) if decoder else layer(x)
            return x.float().square().mean()

    return trained(model, loss, "momentum")
