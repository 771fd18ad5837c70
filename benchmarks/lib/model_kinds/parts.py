"""What models at random are made of: sizes, tensors, small networks, and a training step of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.lib.workloads import Step
from benchmarks.lib.zoo import CUDA, trained

Options = dict[str, Any]
Maker = Callable[[random.Random, Options], Step]


def size(dice: random.Random, low: int, high: int) -> int:
    """A size between two: alike often in each octave, mostly a power of two or a multiple of eight."""
    value = round(math.exp(dice.uniform(math.log(low), math.log(high))))
    style = dice.random()
    rounded = 2 ** round(math.log2(value)) if style < 0.4 else value // 8 * 8 if style < 0.8 else value
    return max(low, min(high, rounded))


def noise(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(*shape, device=CUDA, **options)


def ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device=CUDA)


def squares(found: torch.Tensor) -> torch.Tensor:
    return found.float().square().mean()


def ran(dice: random.Random, model: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], options: Options) -> Step:
    """A training step, mostly; one in eight is without gradients."""
    model = model.to(CUDA)
    if dice.random() < 7 / 8:
        return trained(model.train(), loss_of, **options)
    dtype = options["dtype"]

    @torch.no_grad()
    def step() -> None:
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss_of(model)

    model.eval()
    return step


def activation(dice: random.Random) -> nn.Module:
    return dice.choice([nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Tanh, nn.Softplus, nn.PReLU, nn.Mish])()


def perceptron(dice: random.Random, *widths: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), activation(dice)]
    return nn.Sequential(*parts[:-1])


class Plus(nn.Module):
    """A block that is added to what it is given."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.parts(x)
        return x + found[..., : x.shape[-1]] if found.shape[:-1] == x.shape[:-1] else found
