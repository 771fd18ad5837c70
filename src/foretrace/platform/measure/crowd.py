"""How processes that share a machine slow each other down: the same work, done by so many of them at once.

And how what a process exchanges slows what it does meanwhile: its threads that exchange need a processor too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist

from foretrace.platform.fabric_measurements import BESIDE, WORK, Exchange

SIDE, PRODUCTS, ELEMENTS = 640, 6, 2**21
"""Of the work: products that fill some megabytes of fresh memory, and sums over memory that no cache of a core holds.
Together some tens of milliseconds, as long as a rank works between two collectives."""
SENT = 2**23
"""Elements that are exchanged beside the work, about as long."""


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
    if most == place.ranks:
        yield from _exchanging(place, square, large)


def _together(place: Place, size: int, square: Any, large: Any) -> list[float]:
    """Microseconds of the work on each rank; 0 on those that wait."""
    dist.barrier()
    return _told(_work_us(square, large) if place.rank < size else 0.0, place)


def _exchanging(place: Place, square: Any, large: Any) -> Iterator[Exchange]:
    """The work of all ranks while they sum something up, and that sum without the work and beside it."""
    sent, took = torch.zeros(SENT), [0.0]
    alone = _summed_us(sent, lambda: None)
    beside = _summed_us(sent, lambda: took.append(_work_us(square, large)))
    yield Exchange(WORK, place.ranks, 1, sent.nbytes, tuple(round(us, 1) for us in _told(took[-1], place)))
    sums = (round(min(_told(us, place)), 1) for us in (alone, beside))  # who came last waited for nobody
    yield Exchange(BESIDE, place.ranks, 1, sent.nbytes, tuple(sums))


def _summed_us(sent: Any, meanwhile: Callable[[], None]) -> float:
    """Microseconds until something is summed up over all ranks, while each does something else."""
    ended: list[float] = []
    dist.barrier()
    began = time.perf_counter()
    pending = dist.all_reduce(sent, async_op=True)
    done = pending.get_future().then(lambda _: ended.append(time.perf_counter()))
    meanwhile()
    pending.wait()
    done.wait()
    return (ended[0] - began) * 1e6


def _told(us: float, place: Place) -> list[float]:
    """What each rank says."""
    everybodys = [torch.zeros(1, dtype=torch.float64) for _ in range(place.ranks)]
    dist.all_gather(everybodys, torch.tensor([us], dtype=torch.float64))
    return [one.item() for one in everybodys]


def _work_us(square: Any, large: Any) -> float:
    """Do the work; microseconds that it took."""
    began = time.perf_counter()
    kept = [square @ square for _ in range(PRODUCTS)]
    for one in kept:
        large.add_(one[0, 0])
    return (time.perf_counter() - began) * 1e6
