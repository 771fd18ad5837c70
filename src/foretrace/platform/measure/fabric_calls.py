"""The collectives that a fabric is measured by, each with its buffers, ready to be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Place(Protocol):
    """Which rank this is, and where its buffers lie."""

    rank: int
    device: Any


Call = Callable[[], None]


def all_reduce(whole: torch.Tensor, ranks: int, group: Any, rank: int) -> Call:
    """Sum a buffer over all ranks."""
    return lambda: dist.all_reduce(whole, group=group)


def all_gather(whole: torch.Tensor, ranks: int, group: Any, rank: int) -> Call:
    """Put a buffer together from every rank's part."""
    part = torch.zeros_like(whole[: len(whole) // ranks])
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def reduce_scatter(whole: torch.Tensor, ranks: int, group: Any, rank: int) -> Call:
    """Sum a buffer, of which every rank keeps a part."""
    part = torch.zeros_like(whole[: len(whole) // ranks])
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def all_to_all(whole: torch.Tensor, ranks: int, group: Any, rank: int) -> Call:
    """Give every rank its own part of a buffer."""
    received = torch.zeros_like(whole)
    return lambda: dist.all_to_all_single(received, whole, group=group)


def broadcast(whole: torch.Tensor, ranks: int, group: Any, rank: int) -> Call:
    """Give all ranks what the first one has."""
    return lambda: dist.broadcast(whole, 0, group=group)


def send(whole: torch.Tensor, ranks: int, group: Any, rank: int) -> Call:
    """From the first rank to the last one of the group; the others look on."""
    if rank == 0:
        return lambda: dist.send(whole, ranks - 1, group=group)
    if rank == ranks - 1:
        return lambda: dist.recv(whole, 0, group=group)
    return lambda: None


KINDS: dict[str, Callable[[torch.Tensor, int, Any, int], Call]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "send": send,
}
"""By kind, as `foretrace.graph.Collective` names it. Sizes are counted as there: all that is gathered, all that is
scattered, all that a rank gives away."""
FROM_ONE = ("broadcast", "send")
"""Those in which one rank only sends."""


def prepared(kind: str, nbytes: int, ranks: int, group: Any, place: Place) -> Call | None:
    """A collective of this size with its buffers; None where they do not fit into memory."""
    elements = max(1, nbytes // 4 // ranks) * ranks
    try:
        return KINDS[kind](torch.zeros(elements, device=place.device), ranks, group, place.rank)
    except (torch.OutOfMemoryError, MemoryError):
        return None


def supported(call: Call) -> bool:
    """Whether the backend has this collective; makes the call once.

    >>> supported(lambda: None)
    True
    """
    try:
        call()
    except (RuntimeError, NotImplementedError):
        return False
    return True
