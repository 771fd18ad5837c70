"""How fast the host is at the moment: it is shared, and neighbours make the same work take half as long again."""

from __future__ import annotations

from time import perf_counter_ns

import torch

CALLS = 8
"""Timed at once, after as many that are not: the host was at something else, and the first ones feel that."""


def call_ns() -> float:
    """What a small call of PyTorch takes now, before a step: a replay makes the same calls where its steps begin.

    Not an idle loop: that feels no neighbour who takes the caches.
    """
    for _ in range(CALLS):
        torch.empty(1)
    began = perf_counter_ns()
    for _ in range(CALLS):
        torch.empty(1)
    return (perf_counter_ns() - began) / CALLS
