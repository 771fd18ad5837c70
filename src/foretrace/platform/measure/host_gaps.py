"""What passes between calls where processors do the work: in a step that is as large as people's are.

There a call is its work, and what a profile says of small ones leaves nothing of a plain step for what lies between.
Nor would small steps tell: they find all that Python and autograd need in the caches, and in a job each product has
gone through these in the meantime. So the gaps themselves are looked at, in profiles of a step that has such products.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from foretrace.platform.host_measurements import Calls
from foretrace.platform.measure.host_profile import Event, found_calls, profiled_steps
from foretrace.platform.measure.host_training import Training, trained
from foretrace.platform.measure.host_watch import BACKWARD, FORWARD, OPTIMIZER, calls_of

BLOCKS, SIDE, ROWS = 3, 256, 256
"""Of the step: products of some tenths of a millisecond, on some megabytes."""
REPEATS = 5


class Block(nn.Module):
    """As in a transformer, less the attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.widen, self.narrow = nn.LayerNorm(SIDE), nn.Linear(SIDE, 4 * SIDE), nn.Linear(4 * SIDE, SIDE)

    def forward(self, rows: Any) -> Any:
        """The rows, and what is made of them."""
        return rows + self.narrow(nn.functional.gelu(self.widen(self.norm(rows))))


def gaps_us() -> tuple[float, float, float]:
    """Microseconds between two calls on this process's processor, on average: in forward, backward and optimizer.

    >>> min(gaps_us()) > 0
    True
    """
    model, given = nn.Sequential(*(Block() for _ in range(BLOCKS))), torch.ones(ROWS, SIDE)
    training: Training = trained(model, lambda: model(given).square().sum(), "adamw one by one")
    for _ in range(2):
        training.timed_step()
    calls = calls_of(training)
    forward, backward, optimizer = mean_gaps(profiled_steps(training, REPEATS), calls)
    return forward, backward, optimizer


def mean_gaps(steps: Sequence[Sequence[Event]], calls: Calls) -> list[float]:
    """The mean gap before a call of each phase; each gap the median over some repeats of the step.

    >>> events = [Event(0, 9000, "aten::linear"), Event(1000, 2000, "aten::t"), Event(5000, 8000, "aten::addmm")]
    >>> mean_gaps([events], Calls(["aten::t", "aten::addmm"], [0, 0], [0, 0], [0, 0]))
    [3.0, 0.0, 0.0]
    """
    each = np.full((len(steps), len(calls)), np.nan)
    for repeat, events in enumerate(steps):
        found = found_calls(events, calls.name)
        for row, (before, after) in enumerate(pairwise(found), 1):
            if before and after and calls.phase[row] == calls.phase[row - 1]:
                each[repeat, row] = (after.start - before.end) / 1e3
    seen = np.flatnonzero(np.isfinite(each).any(axis=0))
    usual, phase = np.nanmedian(each[:, seen], axis=0), np.array(calls.phase)[seen]
    return [
        float(usual[phase == one].mean()) if (phase == one).any() else 0.0 for one in (FORWARD, BACKWARD, OPTIMIZER)
    ]
