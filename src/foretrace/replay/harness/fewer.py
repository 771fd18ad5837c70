"""Collectives on fewer ranks than the original had: each moves what goes between the ranks that are there.

Buffers keep their size, since other calls read them. What missing ranks would send is made up, as for one alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .alone import played, receive
from .late import late


@dataclass(frozen=True)
class Fewer:
    """A process group that has lost members."""

    box: Any
    """The group of those that are left; None for one that is left alone."""
    of: int
    """How many there were."""
    places: tuple[int, ...]
    """Where those that are left were in the original group."""


def adapted(number: int, name: str, *arguments: Any, **more: Any) -> Any:
    """A collective among the ranks that are there, as late as the original's where that is asked for."""
    return late(number, _called(number, name, arguments, more))


def _called(number: int, name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
    namespace, _, short = name.partition(".")
    group = next((a for a in arguments if isinstance(a, Fewer)), None)
    if group is None:
        return getattr(getattr(torch.ops, namespace), short).default(*arguments, **more)
    roots = ROOTS.get(short)
    if group.box is None or (roots is not None and short in PEERS and arguments[roots] not in group.places):
        return played(number, name, *arguments, **more)
    if short in CUTS:
        receive(number, arguments[0], arguments[1])
    result = getattr(torch.ops.c10d, short).default(*_shrunk(short, list(arguments), group), **more)
    return (arguments[0], result[-1]) if isinstance(result, tuple) else result


ROOTS = {"broadcast_": 2, "reduce_": 3, "gather_": 3, "scatter_": 3, "send": 2, "recv_": 2}
"""Where a collective names one of its ranks."""
PEERS = ("send", "recv_")


def _shrunk(short: str, arguments: list[Any], group: Fewer) -> list[Any]:
    """The arguments for a smaller group."""
    if short in ROOTS:
        root = arguments[ROOTS[short]]
        arguments[ROOTS[short]] = group.places.index(root) if root in group.places else 0
    if short in CUTS:
        CUTS[short](arguments, group)
    return [group.box if a is group else a for a in arguments]


def _first(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return tensor.view(-1)[:count]


def _gather(arguments: list[Any], group: Fewer) -> None:
    arguments[0] = _first(arguments[0], arguments[1].numel() * len(group.places))


def _scatter(arguments: list[Any], group: Fewer) -> None:
    arguments[1] = _first(arguments[1], arguments[0].numel() * len(group.places))


def _each(cut: Any) -> Any:
    def both(arguments: list[Any], group: Fewer) -> None:
        pairs = [[out, given] for out, given in zip(*arguments[:2])]
        for pair in pairs:
            cut(pair, group)
        arguments[:2] = [list(side) for side in zip(*pairs)]

    return both


def _exchange(arguments: list[Any], group: Fewer) -> None:
    """Rows that go between two ranks that are there stay as many as they were."""
    for buffer, splits in ((0, 3), (1, 4)):
        every = arguments[splits] or [arguments[buffer].shape[0] // group.of] * group.of
        arguments[splits] = [every[place] for place in group.places]
        arguments[buffer] = arguments[buffer][: sum(arguments[splits])]


def _lists(*sides: int) -> Any:
    """Keep the entries of the ranks that are there."""

    def cut(arguments: list[Any], group: Fewer) -> None:
        for side in sides:
            arguments[side] = _kept(arguments[side], group)

    return cut


def _kept(entries: list[Any], group: Fewer) -> list[Any]:
    if entries and isinstance(entries[0], list):
        return [_kept(inner, group) for inner in entries]
    return [entries[place] for place in group.places]


CUTS: dict[str, Any] = {
    "_allgather_base_": _gather,
    "allgather_into_tensor_coalesced_": _each(_gather),
    "_reduce_scatter_base_": _scatter,
    "reduce_scatter_tensor_coalesced_": _each(_scatter),
    "alltoall_base_": _exchange,
    "alltoall_": _lists(0, 1),
    "allgather_": _lists(0),
    "reduce_scatter_": _lists(1),
    "gather_": _lists(0),
    "scatter_": _lists(1),
}
"""Collectives whose buffers hold a part for each rank."""
