"""Trains a small net with PyTorch, and gives it back as plain arrays. Only who fits models comes here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

WIDTH, BATCH, FASTEST = 128, 256, 5e-3
STEPS = 10_000
"""Updates, and at most as many rounds over the rows."""
ROUNDS = 150

Layer = tuple[NDArray[np.float64], NDArray[np.float64]]


def train(columns: NDArray[np.float64], target: NDArray[np.float64]) -> list[Layer]:
    """Weights and biases of each layer; the answer is in the target's own units.

    >>> x = np.linspace(-1, 1, 300)[:, None]
    >>> layers = train(x, 3 * x[:, 0])
    >>> [weights.shape for weights, _ in layers]
    [(1, 128), (128, 128), (128, 1)]
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        middle, width = float(target.mean()), float(target.std()) or 1.0
        x, y = torch.tensor(columns, dtype=torch.float32), torch.tensor((target - middle) / width, dtype=torch.float32)
        net = nn.Sequential(
            nn.Linear(x.shape[1], WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)
        )
        _descend(net, x, y)
    layers = [_plain(layer) for layer in net if isinstance(layer, nn.Linear)]
    weights, biases = layers[-1]
    return [*layers[:-1], (weights * width, biases * width + middle)]


def _descend(net: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    batches = -(-len(x) // BATCH)
    rounds = min(ROUNDS, max(1, STEPS // batches))
    optimizer = torch.optim.AdamW(net.parameters(), lr=FASTEST, weight_decay=1e-4)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, FASTEST, total_steps=rounds * batches)
    for _ in range(rounds):
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = nn.functional.smooth_l1_loss(net(x[rows])[:, 0], y[rows], beta=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pace.step()


def _plain(layer: nn.Linear) -> Layer:
    return layer.weight.detach().double().numpy().T, layer.bias.detach().double().numpy()
