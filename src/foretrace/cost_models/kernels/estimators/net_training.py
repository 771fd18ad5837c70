"""Trains small nets with PyTorch, and gives them back as plain arrays. Only who fits models comes here.

Several nets are trained at once as one whose weights have one more dimension: on a GPU it takes little longer than one.
An update is some sixty small kernels, whose launches would take longer than they do: a GPU records it once and repeats
it by itself, so all that changes from one update to the next is kept there.

Beside the time, nets learn to say what is known of the kernels that ran: it is not asked for later, but what has to
tell kernels apart knows better where the time jumps.
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

from foretrace.cost_models.kernels.estimators.nets import PURPOSES, KernelChoice, Purpose

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
    """Updates, if the rows are not gone over too often for that."""
    rounds: int
    """How often the rows are gone over at most."""
    fastest: float
    decay: float
    dropout: float
    """Share of a layer's units that an update leaves out, others each time, so that nothing hangs on a few of them."""


EFFORTS: dict[str, dict[Purpose, Effort]] = {
    "cpu": dict.fromkeys(PURPOSES, Effort(1, 1, 128, 256, 10_000, 150, 5e-3, 1e-4, 0.0)),
    "cuda": {
        "time": Effort(6, 2, 256, 512, 16_000, 300, 4e-3, 0.1, 0.1),
        "kernel": Effort(1, 2, 384, 1024, 30_000, 300, 4e-3, 0.03, 0.15),
        "time on a kernel": Effort(4, 3, 256, 2048, 24_000, 300, 4e-3, 0.05, 0.03),
    },
}
"""By kind of the device that trains, and by what nets are to say."""
SMALL = 0.05
"""Errors of the logarithm up to which an error counts by its square, beyond by its size."""
UP = 0.1
"""Share of the updates in which the pace rises; then it falls."""
FACTS = 0.3
"""What a fact's squared error counts, in its standard deviations, beside the time's."""
FIRST = 3
"""Updates before one is recorded: libraries choose their kernels in the first ones."""


def train(
    columns: NDArray[np.float64],
    target: NDArray[np.float64],
    facts: NDArray[np.float64] | None = None,
    choice: KernelChoice | None = None,
    purpose: Purpose = "time",
) -> list[Layer]:
    """Layers of nets that say the logarithm of a time, on a GPU where there is one.

    Where a kernel is to be chosen, they say that too: how much each piece of one speaks for it.

    >>> x = np.linspace(-1, 1, 300)[:, None]
    >>> layers = train(x, 3 * x[:, 0], facts=x > 0)
    >>> [weights.shape[1:] for weights, _ in layers][-1][1], bool(len(layers) > 2)
    (1, True)
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    effort = EFFORTS[device][purpose]
    wanted = target[:, None] if facts is None else np.column_stack([target, _standard(facts)])
    with torch.random.fork_rng():
        torch.manual_seed(7)
        x, y = (torch.tensor(values, dtype=torch.float32, device=device) for values in (columns, wanted))
        chosen = Chosen(choice, device) if choice is not None else None
        middle = y.mean(dim=0)
        if chosen is not None:
            middle = torch.cat([middle, middle.new_zeros(len(chosen.pieces))])
        layers = _fresh(x.shape[1], middle, effort)
        Descent(layers, x, y, effort, chosen).go()
    plain = [tuple(tensor.detach().double().cpu().numpy() for tensor in layer) for layer in layers]
    asked = [0, *range(wanted.shape[1], len(middle))]
    weights, biases = plain[-1]
    return [*plain[:-1], (weights[:, :, asked], biases[:, :, asked])]


def _standard(facts: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray((facts - facts.mean(axis=0)) / (facts.std(axis=0) + 1e-6))


def _fresh(inputs: int, middle: torch.Tensor, effort: Effort) -> Parameters:
    """Layers with random weights, that say what is true in the middle."""
    sizes = [inputs] + [effort.width] * (effort.hidden + 1) + [len(middle)]
    layers = [
        (_random((effort.nets, given, made), given, middle), _random((effort.nets, 1, made), given, middle))
        for given, made in pairwise(sizes)
    ]
    layers[-1][1].copy_(middle.expand_as(layers[-1][1]))
    return [(weights.requires_grad_(), biases.requires_grad_()) for weights, biases in layers]


def _random(shape: tuple[int, ...], given: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(shape).uniform_(-1, 1) / math.sqrt(given)


class Chosen:
    """A choice where nets are trained."""

    def __init__(self, choice: KernelChoice, device: str) -> None:
        self.ran = torch.tensor(choice.ran, device=device)
        kernels = np.arange(len(choice.pieces))[:, None]
        pieces = np.zeros((choice.pieces.max() + 1, len(choice.pieces)), np.float32)
        pieces[choice.pieces, kernels] = 1.0
        self.pieces = torch.tensor(pieces, device=device)
        """Which pieces, in rows, each kernel has."""

    def off(self, said: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """How little speaks for the kernels that ran."""
        return functional.cross_entropy((said @ self.pieces).flatten(0, 1), self.ran[rows].flatten())


class Descent:
    """Updates of nets, each on the next batch of rows and at the pace of its time."""

    def __init__(
        self, layers: Parameters, x: torch.Tensor, y: torch.Tensor, effort: Effort, chosen: Chosen | None = None
    ) -> None:
        self.layers, self.x, self.y, self.effort, self.chosen = layers, x, y, effort, chosen
        on_gpu = x.device.type == "cuda"
        batch = min(effort.batch, len(x))
        self.batches = len(x) // batch
        self.steps = min(effort.steps, effort.rounds * self.batches)
        self.order = torch.empty(effort.nets, len(x), dtype=torch.int64, device=x.device)
        self.window = torch.arange(batch, device=x.device)
        self.made = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.paces = torch.tensor(paces(self.steps, effort.fastest), dtype=torch.float32, device=x.device)
        self.pace = torch.zeros((), device=x.device)
        weights = [tensor for layer in layers for tensor in layer]
        self.optimizer = torch.optim.AdamW(
            weights, lr=self.pace, weight_decay=effort.decay, capturable=on_gpu, fused=on_gpu
        )

    def go(self) -> None:
        """All updates."""
        self._shuffle()
        update, made = (self._recorded(), FIRST) if self.x.device.type == "cuda" else (self.update, 0)
        for step in range(made, self.steps):
            if step % self.batches == 0:
                self._shuffle()
            update()

    def _shuffle(self) -> None:
        """Another order of the rows, of its own for each net."""
        self.order.copy_(torch.rand(self.order.shape, device=self.x.device).argsort(dim=1))

    def _recorded(self) -> Callable[[], None]:
        """An update as one launch, after a few that were made one kernel after the other."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # as PyTorch wants it before a recording
            for _ in range(FIRST):
                self.update()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.update()
        repeated: Callable[[], None] = graph.replay
        return repeated

    def update(self) -> None:
        """One update: nothing of it is known to the host, so that it can be repeated without."""
        self.pace.copy_(self.paces.index_select(0, self.made)[0])
        rows = self.order.index_select(1, self.made % self.batches * len(self.window) + self.window)
        self.optimizer.zero_grad()
        said, wanted = _said(self.layers, self.x[rows], self.effort.dropout), self.y[rows]
        loss = _off(said[:, :, : wanted.shape[2]] - wanted)
        if self.chosen is not None:
            loss = loss + self.chosen.off(said[:, :, wanted.shape[2] :], rows)
        (self.effort.nets * loss).backward()
        self.optimizer.step()
        self.made += 1


def paces(steps: int, fastest: float) -> NDArray[np.float64]:
    """How fast weights change in each update: up to the fastest, then down to nothing.

    >>> paces(20, 1.0).round(2).tolist()[:5]
    [0.0, 0.5, 1.0, 0.99, 0.97]
    """
    share = np.arange(steps) / steps
    rising, falling = np.clip(share / UP, 0, 1), np.clip((share - UP) / (1 - UP), 0, 1)
    return np.asarray(fastest * (1 - np.cos(math.pi * rising)) * (1 + np.cos(math.pi * falling)) / 4)


def _said(layers: Parameters, flow: torch.Tensor, dropout: float) -> torch.Tensor:
    for weights, biases in layers[:-1]:
        flow = functional.dropout(functional.silu(torch.baddbmm(biases, flow, weights)), dropout)
    weights, biases = layers[-1]
    return torch.baddbmm(biases, flow, weights)


def _off(errors: torch.Tensor) -> torch.Tensor:
    """How far answers are off: half by logarithms, half by the times themselves, which count in a mean."""
    time, facts = errors[:, :, 0], errors[:, :, 1:]
    by_time = torch.expm1(time.clamp(max=1.0))
    off = sum(functional.smooth_l1_loss(part, torch.zeros_like(part), beta=SMALL) for part in (time, by_time)) / 2
    return off + FACTS * facts.square().mean() if facts.shape[2] else off
