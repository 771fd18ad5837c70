"""Trains small nets with PyTorch, and gives them back as plain arrays. Only who fits models comes here.

Several nets are trained at once as one whose weights have one more dimension: on a GPU it takes little longer than one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Layer = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights and biases, those of each net after the one before."""
Parameters = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Effort:
    """What is trained, and for how long."""

    nets: int
    hidden: int
    """Layers between the first and the last."""
    width: int
    batch: int
    steps: int
    """Updates, if the rows are not gone over more often than `ROUNDS` for that."""
    fastest: float
    decay: float


EFFORTS = {"cpu": Effort(1, 1, 128, 256, 10_000, 5e-3, 1e-4), "cuda": Effort(4, 2, 256, 1024, 12_000, 4e-3, 3e-2)}
"""By kind of the device that trains."""
ROUNDS = 150
SMALL = 0.05
"""Errors of the logarithm up to which an error counts by its square, beyond by its size."""
UP = 0.1
"""Share of the updates in which the pace rises; then it falls."""


def train(columns: NDArray[np.float64], target: NDArray[np.float64]) -> list[Layer]:
    """Layers of nets that say the logarithm of a time, on a GPU where there is one.

    >>> x = np.linspace(-1, 1, 300)[:, None]
    >>> layers = train(x, 3 * x[:, 0])
    >>> [weights.shape[1:] for weights, _ in layers][-1][1], bool(len(layers) > 2)
    (1, True)
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    effort = EFFORTS[device]
    with torch.random.fork_rng():
        torch.manual_seed(7)
        x, y = (torch.tensor(values, dtype=torch.float32, device=device) for values in (columns, target))
        layers = _fresh(x.shape[1], float(y.mean()), effort, device)
        _descend(layers, x, y, effort)
    return [
        (weights.detach().double().cpu().numpy(), biases.detach().double().cpu().numpy()) for weights, biases in layers
    ]


def _fresh(inputs: int, middle: float, effort: Effort, device: str) -> Parameters:
    """Layers with random weights, that say what is true in the middle."""
    sizes = [inputs] + [effort.width] * (effort.hidden + 1) + [1]
    layers = [
        (_random((effort.nets, given, made), given, device), _random((effort.nets, 1, made), given, device))
        for given, made in pairwise(sizes)
    ]
    layers[-1][1].fill_(middle)
    return [(weights.requires_grad_(), biases.requires_grad_()) for weights, biases in layers]


def _random(shape: tuple[int, ...], given: int, device: str) -> torch.Tensor:
    return torch.empty(shape, device=device).uniform_(-1, 1) / math.sqrt(given)


def _descend(layers: Parameters, x: torch.Tensor, y: torch.Tensor, effort: Effort) -> None:
    batches = -(-len(x) // effort.batch)
    steps = min(effort.steps, ROUNDS * batches)
    optimizer = torch.optim.AdamW(
        [tensor for layer in layers for tensor in layer], lr=effort.fastest, weight_decay=effort.decay
    )
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, effort.fastest, total_steps=steps, pct_start=UP)
    for step in range(steps):
        if step % batches == 0:
            order = torch.rand(effort.nets, len(x), device=x.device).argsort(dim=1)  # its own for each net
        rows = order[:, step % batches * effort.batch :][:, : effort.batch]
        loss = effort.nets * _off(_said(layers, x[rows]) - y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace.step()


def _said(layers: Parameters, flow: torch.Tensor) -> torch.Tensor:
    for weights, biases in layers[:-1]:
        flow = functional.silu(torch.baddbmm(biases, flow, weights))
    weights, biases = layers[-1]
    return torch.baddbmm(biases, flow, weights)[:, :, 0]


def _off(error: torch.Tensor) -> torch.Tensor:
    """How far answers are off: half by logarithms, half by the times themselves, which count in a mean."""
    nothing = torch.zeros_like(error)
    by_time = torch.expm1(error.clamp(max=1.0))
    return sum(functional.smooth_l1_loss(off, nothing, beta=SMALL) for off in (error, by_time)) / 2
