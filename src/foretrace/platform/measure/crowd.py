"""How processes that share a machine slow each other down: the same work, done by so many of them at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

from foretrace.platform.fabric_measurements import WORK, Exchange

SIDE, PRODUCTS, ELEMENTS = 640, 6, 2**21
"""Of the work: products that fill some megabytes of fresh memory, and sums over memory that no cache of a core holds.
Together some tens of milliseconds, as long as a rank works between two collectives."""


class Place(Protocol):
    """Which of how many processes this is, and how many of them a machine has."""

    rank: int
    ranks: int
    per_node: int


def crowd(place: Place) -> Iterator[Exchange]:
    """Let 1, 2, 4, … and all processes of the first machine work at once; on each of them what each one took.

    The others wait meanwhile. Every process of the group must come here. Which of them share a core changes by chance
    and not at once: it takes several moments, apart from each other, to know.
    """
    most = min(place.ranks, place.per_node)
    sizes = {2**power for power in range(most.bit_length()) if 2**power <= most} | {most}
    square, large = torch.randn(SIDE, SIDE), torch.randn(ELEMENTS)
    for size in sorted(sizes):
        took = _together(place, size, square, large)
        yield Exchange(WORK, size, 1, 0, tuple(round(us, 1) for us in took[:size]))


def _together(place: Place, size: int, square: Any, large: Any) -> list[float]:
    """Microseconds of the work on each rank; 0 on those that wait."""
    mine = torch.zeros(1, dtype=torch.float64)
    dist.barrier()
    if place.rank < size:
        began = time.perf_counter()
        _work(square, large)
        mine[0] = (time.perf_counter() - began) * 1e6
    everybodys = [torch.zeros_like(mine) for _ in range(place.ranks)]
    dist.all_gather(everybodys, mine)
    return [one.item() for one in everybodys]


def _work(square: Any, large: Any) -> None:
    kept = [square @ square for _ in range(PRODUCTS)]
    for one in kept:
        large.add_(one[0, 0])
