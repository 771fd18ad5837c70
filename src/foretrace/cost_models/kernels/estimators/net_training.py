"""Trains small nets with PyTorch, and returns them as plain arrays. Only fitting imports this module.

Several nets are trained at once as one whose weights have one more dimension: on a GPU it takes little longer than one.
An update is some sixty small kernels, whose launches would take longer than they do: it is captured as a CUDA graph and
replayed, so all that changes from one update to the next is kept on the device.

Beside the time, nets learn to predict traits of the kernels that ran: these are not used later, but a net that tells
kernels apart knows better where the time jumps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from foretrace.cost_models.kernels.estimators.residual import PURPOSES, KernelChoice, Purpose

Layer = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights and biases; the nets are the first dimension."""
Parameters = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Effort:
    """Size of the nets, and length of the training."""

    nets: int
    hidden: int
    """Hidden layers between the first and the last."""
    width: int
    batch: int
    steps: int
    """Updates at most."""
    epochs: int
    """Epochs at most."""
    learning_rate: float
    """The largest of the schedule."""
    decay: float
    dropout: float
    """Share of a layer's units that an update leaves out."""


EFFORTS: dict[str, dict[Purpose, Effort]] = {
    "cpu": dict.fromkeys(PURPOSES, Effort(1, 1, 128, 256, 10_000, 150, 5e-3, 1e-4, 0.0)),
    "cuda": {
        "time": Effort(6, 2, 256, 512, 16_000, 300, 4e-3, 0.1, 0.1),
        "kernel": Effort(1, 2, 384, 1024, 30_000, 300, 4e-3, 0.03, 0.15),
        "time on a kernel": Effort(4, 3, 256, 2048, 24_000, 300, 4e-3, 0.05, 0.03),
    },
}
"""By kind of the training device, and by what nets predict."""
HUBER_BETA = 0.05
"""Errors of the logarithm up to which the loss is quadratic, beyond linear."""
WARM_UP = 0.1
"""Share of the updates in which the learning rate rises; then it falls."""
TRAIT_WEIGHT = 0.3
"""Weight of a trait's squared error, in standard deviations, relative to the time's loss."""
EAGER_UPDATES = 3
"""Updates before one is captured: libraries select their kernels in the first ones."""


def train(
    columns: NDArray[np.float64],
    target: NDArray[np.float64],
    traits: NDArray[np.float64] | None = None,
    choice: KernelChoice | None = None,
    purpose: Purpose = "time",
) -> list[Layer]:
    """Layers of nets that predict the logarithm of a time, trained on a GPU where there is one.

    Where a kernel is to be selected, they also predict the pieces of each kernel's score.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    effort = EFFORTS[device][purpose]
    wanted = target[:, None]
    if traits is not None:
        wanted = np.column_stack([target, (traits - traits.mean(axis=0)) / (traits.std(axis=0) + 1e-6)])
    with torch.random.fork_rng():
        torch.manual_seed(7)
        x, y = (torch.tensor(values, dtype=torch.float32, device=device) for values in (columns, wanted))
        selection = SelectionLoss(choice, device) if choice is not None else None
        middle = y.mean(dim=0)
        if selection is not None:
            middle = torch.cat([middle, middle.new_zeros(len(selection.pieces))])
        layers = _initial(x.shape[1], middle, effort)
        Training(layers, x, y, effort, selection).run()
    plain = [tuple(tensor.detach().double().cpu().numpy() for tensor in layer) for layer in layers]
    asked = [0, *range(wanted.shape[1], len(middle))]
    weights, biases = plain[-1]
    return [*plain[:-1], (weights[:, :, asked], biases[:, :, asked])]


def _initial(inputs: int, middle: torch.Tensor, effort: Effort) -> Parameters:
    """Layers with random weights, that predict the means."""
    sizes = [inputs] + [effort.width] * (effort.hidden + 1) + [len(middle)]
    layers = [
        (_random((effort.nets, given, made), given, middle), _random((effort.nets, 1, made), given, middle))
        for given, made in pairwise(sizes)
    ]
    layers[-1][1].copy_(middle.expand_as(layers[-1][1]))
    return [(weights.requires_grad_(), biases.requires_grad_()) for weights, biases in layers]


def _random(shape: tuple[int, ...], given: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(shape).uniform_(-1, 1) / math.sqrt(given)


class SelectionLoss:
    """Loss of the kernel selection: cross entropy of the kernels that ran."""

    def __init__(self, choice: KernelChoice, device: str) -> None:
        self.ran = torch.tensor(choice.ran, device=device)
        kernels = np.arange(len(choice.pieces))[:, None]
        pieces = np.zeros((choice.pieces.max() + 1, len(choice.pieces)), np.float32)
        pieces[choice.pieces, kernels] = 1.0
        self.pieces = torch.tensor(pieces, device=device)
        """A row per piece, a column per kernel: 1 where the kernel has the piece."""

    def __call__(self, outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The loss of the outputs for a batch of rows."""
        return functional.cross_entropy((outputs @ self.pieces).flatten(0, 1), self.ran[rows].flatten())


class Training:
    """Updates of nets, each on the next batch of rows and at the learning rate of its step."""

    def __init__(
        self, layers: Parameters, x: torch.Tensor, y: torch.Tensor, effort: Effort, selection: SelectionLoss | None
    ) -> None:
        self.layers, self.x, self.y, self.effort, self.selection = layers, x, y, effort, selection
        on_gpu = x.device.type == "cuda"
        batch = min(effort.batch, len(x))
        self.batches = len(x) // batch
        self.steps = min(effort.steps, effort.epochs * self.batches)
        self.order = torch.empty(effort.nets, len(x), dtype=torch.int64, device=x.device)
        self.window = torch.arange(batch, device=x.device)
        self.made = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.rates = torch.tensor(
            learning_rates(self.steps, effort.learning_rate), dtype=torch.float32, device=x.device
        )
        self.rate = torch.zeros((), device=x.device)
        weights = [tensor for layer in layers for tensor in layer]
        self.optimizer = torch.optim.AdamW(
            weights, lr=self.rate, weight_decay=effort.decay, capturable=on_gpu, fused=on_gpu
        )

    def run(self) -> None:
        """Make all updates."""
        self._shuffle()
        update, made = (self._captured(), EAGER_UPDATES) if self.x.device.type == "cuda" else (self.update, 0)
        for step in range(made, self.steps):
            if step % self.batches == 0:
                self._shuffle()
            update()

    def _shuffle(self) -> None:
        """Draw a new order of the rows for each net."""
        self.order.copy_(torch.rand(self.order.shape, device=self.x.device).argsort(dim=1))

    def _captured(self) -> Callable[[], None]:
        """An update as a CUDA graph, after a few eager ones."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # as PyTorch requires before a capture
            for _ in range(EAGER_UPDATES):
                self.update()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.update()
        replay: Callable[[], None] = graph.replay
        return replay

    def update(self) -> None:
        """One update. Its state is on the device, so that it can be replayed."""
        self.rate.copy_(self.rates.index_select(0, self.made)[0])
        rows = self.order.index_select(1, self.made % self.batches * len(self.window) + self.window)
        self.optimizer.zero_grad()
        outputs, wanted = _outputs(self.layers, self.x[rows], self.effort.dropout), self.y[rows]
        loss = _regression_loss(outputs[:, :, : wanted.shape[2]] - wanted)
        if self.selection is not None:
            loss = loss + self.selection(outputs[:, :, wanted.shape[2] :], rows)
        (self.effort.nets * loss).backward()
        self.optimizer.step()
        self.made += 1


def learning_rates(steps: int, largest: float) -> NDArray[np.float64]:
    """The learning rate of each update: a cosine up to the largest, then down to zero.

    >>> learning_rates(20, 1.0).round(2).tolist()[:5]
    [0.0, 0.5, 1.0, 0.99, 0.97]
    """
    share = np.arange(steps) / steps
    rising, falling = np.clip(share / WARM_UP, 0, 1), np.clip((share - WARM_UP) / (1 - WARM_UP), 0, 1)
    return np.asarray(largest * (1 - np.cos(math.pi * rising)) * (1 + np.cos(math.pi * falling)) / 4)


def _outputs(layers: Parameters, flow: torch.Tensor, dropout: float) -> torch.Tensor:
    for weights, biases in layers[:-1]:
        flow = functional.dropout(functional.silu(torch.baddbmm(biases, flow, weights)), dropout)
    weights, biases = layers[-1]
    return torch.baddbmm(biases, flow, weights)


def _regression_loss(errors: torch.Tensor) -> torch.Tensor:
    """Loss of times and traits: of times half by logarithms, half by the times themselves, which count in a mean."""
    time, traits = errors[:, :, 0], errors[:, :, 1:]
    by_time = torch.expm1(time.clamp(max=1.0))
    loss = sum(functional.smooth_l1_loss(part, torch.zeros_like(part), beta=HUBER_BETA) for part in (time, by_time)) / 2
    return loss + TRAIT_WEIGHT * traits.square().mean() if traits.shape[2] else loss
