"""Collectives of a process that plays its rank alone: nothing is sent, and what others would send is made up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .contents import Fill
from .host import here, made_by
from .late import late

received: dict[int, Fill] = {}
"""By the number of a collective, what its readers need the result to hold, where they need something of their own."""
_kept: dict[int, list[torch.Tensor]] = {}


def play(number: int, name: str, *arguments: Any, **more: Any) -> Any:
    """The result of a collective that moves nothing, as late as the original's where that is asked for."""
    return late(number, played(number, name, *arguments, **more))


def played(number: int, name: str, *arguments: Any, **more: Any) -> Any:
    """The result of a collective in which each other rank sends what this one does.

    >>> out = torch.zeros(4); played(0, "c10d._allgather_base_", out, torch.tensor([1.0, 2.0]), None)[0].tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    namespace, _, short = name.partition(".")
    if namespace != "c10d":
        result = made_by(number) if here.calls[number]["makes"] != [None] else arguments[0]
        if short != "wait_tensor":
            receive(number, result, arguments[0])
        return arguments[0] if short == "wait_tensor" else result
    receive(number, arguments[0], arguments[1])
    schema = getattr(torch.ops.c10d, short).default._schema
    return (arguments[0], None) if len(schema.returns) == 2 else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def receive(number: int, result: Any, gives: Any) -> None:
    """Fill what a collective returns: as its readers need it, or else with what this rank gives, over and over."""
    results, given = list(_tensors(result)), list(_tensors(gives))
    if number in received:
        if number not in _kept:
            _kept[number] = [torch.empty_like(result) for result in results]
            for kept in _kept[number]:
                if kept.numel() and kept.device.type != "meta":
                    received[number](kept)
        for part, kept in zip(results, _kept[number]):
            part.copy_(kept)
    elif given:
        for place, part in enumerate(results):
            _repeat(part, given[place % len(given)])


def _repeat(result: torch.Tensor, given: torch.Tensor) -> None:
    """Fill a tensor with another, over and over."""
    room, data = result.reshape(-1), given.reshape(-1)
    if not len(data):
        result.zero_()
        return
    for start in range(0, len(room), len(data)):
        part = room[start : start + len(data)]
        part.copy_(data[: len(part)])
    if room.data_ptr() != result.data_ptr():  # not contiguous: what was filled is a copy
        result.copy_(room.view(result.shape))
