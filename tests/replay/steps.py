"""Training steps to replay, small, each a function that builds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dlrm
import gpt
import resnet

Step = Callable[[], Any]


def layers(optimizer: type[torch.optim.Optimizer], **options: Any) -> Step:
    """Three layers and an optimizer of PyTorch's."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    update = optimizer(model.parameters(), lr=1e-3, **options)
    given, wanted = torch.randn(4, 16), torch.randint(8, (4,))

    def step() -> None:
        update.zero_grad()
        nn.functional.cross_entropy(model(given), wanted).backward()
        update.step()

    return step


def recomputing() -> Step:
    """A block whose activations are computed again in backward."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    update = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.randn(8, 16)

    def step() -> None:
        update.zero_grad()
        checkpoint(model, given, use_reentrant=False).square().mean().backward()
        update.step()

    return step


def accumulating() -> Step:
    """Two micro-batches, gradients added up in place."""
    model = nn.Linear(8, 8)
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts = torch.randn(2, 4, 8)

    def step() -> None:
        update.zero_grad(set_to_none=False)
        for part in parts:
            model(part).square().mean().backward()
        update.step()

    return step


STEPS: dict[str, Callable[[], Step]] = {
    "dlrm with sparse gradients": dlrm.make_step,
    "dlrm with adagrad": lambda: dlrm.make_step(optimizer="adagrad", skew=1.05),
    "gpt with bf16 autocast": lambda: gpt.make_step(dtype="bf16", batch=2),
    "resnet": lambda: resnet.make_step(batch=2),
    "adamw, foreach": lambda: layers(torch.optim.AdamW, foreach=True),
    "adamw, fused": lambda: layers(torch.optim.AdamW, fused=True),
    "adamw, one by one": lambda: layers(torch.optim.AdamW, foreach=False),
    "activation checkpointing": recomputing,
    "gradient accumulation": accumulating,
}
