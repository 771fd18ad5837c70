"""A small training step in parts, so that each can be timed: clearing, forward, backward, optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

Phases = tuple[float, float, float, float]
"""Microseconds of host time in clearing gradients, in forward, backward and optimizer."""


@dataclass
class Training:
    """What a step computes its loss with, and what updates its weights.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> training = Training(lambda: weight.sum(), torch.optim.SGD([weight], lr=0.5))
    >>> len(training.timed_step()), weight.tolist()
    (4, [0.5, 0.5, 0.5])
    """

    loss: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer
    before_update: Callable[[], Any] = field(default=lambda: None)
    """Runs between backward and update, as clipping of gradients does."""

    def timed_step(self) -> Phases:
        """Do one step; how long the host took for each part, whatever the device still has to do."""
        stamps = [time.perf_counter_ns()]
        self.optimizer.zero_grad(set_to_none=True)
        stamps.append(time.perf_counter_ns())
        loss = self.loss()
        stamps.append(time.perf_counter_ns())
        loss.backward()
        stamps.append(time.perf_counter_ns())
        self.before_update()
        self.optimizer.step()
        del loss  # and with it the graph that backward went through, as at the end of anybody's step
        stamps.append(time.perf_counter_ns())
        clearing, forward, backward, optimizer = ((end - begin) / 1e3 for begin, end in pairwise(stamps))
        return clearing, forward, backward, optimizer


def trained(model: torch.nn.Module, loss: Callable[[], torch.Tensor], optimizer: str = "adamw") -> Training:
    """A model with one of the optimizers that people use."""
    return Training(loss, OPTIMIZERS[optimizer](model.parameters()))


def _adam(kind: Any, **options: Any) -> Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: kind(parameters, lr=1e-3, **options)


OPTIMIZERS: dict[str, Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": _adam(torch.optim.SGD),
    "momentum": _adam(torch.optim.SGD, momentum=0.9),
    "adam": _adam(torch.optim.Adam),
    "adamw": _adam(torch.optim.AdamW),
    "adamw one by one": _adam(torch.optim.AdamW, foreach=False),
    "fused adamw": _adam(torch.optim.AdamW, fused=True),
    "fused sgd": _adam(torch.optim.SGD, momentum=0.9, fused=True),
    "rmsprop": _adam(torch.optim.RMSprop),
}
"""By name: how one is made from parameters."""
