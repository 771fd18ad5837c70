"""Collectives with fewer ranks than the original had, down to one, and with the original's duration.

Buffers keep their size, since other calls read them. A collective moves what goes between the ranks that are present;
what missing ranks would send is made up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch

from .host import cycles_per_us, on_cuda, runtime, tensors_in, zero_results
from .inputs import Fill


@dataclass
class DelayedWork:
    """The work of a collective that takes at least as long as in the original."""

    work: Any
    due_ns: float
    event: Any = None

    def wait(self) -> None:
        """Wait until it is due: on the host, or on the current stream."""
        if self.event is not None:
            self.event.wait()
        while self.event is None and perf_counter_ns() < self.due_ns:
            pass


def delayed(number: int, result: Any) -> Any:
    """The result of a collective, with a work that takes at least as long as the original's."""
    us = runtime.calls[number].get("took_us", 0.0)
    if not runtime.delayed or not us:
        return result
    work = result[-1] if isinstance(result, tuple) else result
    if isinstance(work, torch.Tensor):
        return result  # functional: its wait can't be found among the other calls
    held = DelayedWork(work, perf_counter_ns() + us * 1000, _sleeping(us) if on_cuda() else None)
    return (*result[:-1], held) if isinstance(result, tuple) else held


def _sleeping(us: float) -> Any:
    """An event on a separate stream, that long after the work of the current stream."""
    runtime.delay_stream = runtime.delay_stream or torch.cuda.Stream()
    runtime.delay_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(runtime.delay_stream):
        torch.cuda._sleep(int(us * cycles_per_us()))
        event = torch.cuda.Event()
        event.record()
    return event


received: dict[int, Fill] = {}
"""By the number of a collective, what fills its result, where its readers need certain values."""
_contents: dict[int, list[torch.Tensor]] = {}


def emulate(number: int, name: str, *arguments: Any, **more: Any) -> Any:
    """A collective that moves nothing, delayed like the original's if enabled."""
    return delayed(number, emulated(number, name, *arguments, **more))


def emulated(number: int, name: str, *arguments: Any, **more: Any) -> Any:
    """The result of a collective in which each other rank sends what this one does.

    >>> out = torch.zeros(4); emulated(0, "c10d._allgather_base_", out, torch.tensor([1.0, 2.0]), None)[0].tolist()
    [1.0, 2.0, 1.0, 2.0]
    """
    namespace, _, short = name.partition(".")
    if namespace != "c10d":
        result = zero_results(number) if runtime.calls[number]["makes"] != [None] else arguments[0]
        if short != "wait_tensor":
            fill_received(number, result, arguments[0])
        return arguments[0] if short == "wait_tensor" else result
    fill_received(number, arguments[0], arguments[1])
    schema = getattr(torch.ops.c10d, short).default._schema
    return (arguments[0], None) if len(schema.returns) == 2 else None


def fill_received(number: int, result: Any, sent: Any) -> None:
    """Fill the result of a collective: as its readers need it, or else by repeating what this rank sends."""
    results, sent_tensors = list(tensors_in(result)), list(tensors_in(sent))
    if number in received:
        if number not in _contents:
            _contents[number] = [torch.empty_like(result) for result in results]
            for content in _contents[number]:
                if content.numel() and content.device.type != "meta":
                    received[number](content)
        for part, content in zip(results, _contents[number]):
            part.copy_(content)
    elif sent_tensors:
        for place, part in enumerate(results):
            _repeat(part, sent_tensors[place % len(sent_tensors)])


def _repeat(result: torch.Tensor, sent: torch.Tensor) -> None:
    """Fill a tensor by repeating another."""
    flat, data = result.reshape(-1), sent.reshape(-1)
    if not len(data):
        result.zero_()
        return
    for start in range(0, len(flat), len(data)):
        part = flat[start : start + len(data)]
        part.copy_(data[: len(part)])
    if flat.data_ptr() != result.data_ptr():  # not contiguous: a copy was filled
        result.copy_(flat.view(result.shape))


@dataclass(frozen=True)
class PartialGroup:
    """A process group without some of its original ranks."""

    box: Any
    """The process group of the ranks that are present; None if that is only one."""
    of: int
    """Number of ranks in the original group."""
    places: tuple[int, ...]
    """Positions of the present ranks in the original group."""


def adapted(number: int, name: str, *arguments: Any, **more: Any) -> Any:
    """A collective among the ranks that are present, delayed like the original's if enabled."""
    return delayed(number, _called(number, name, arguments, more))


def _called(number: int, name: str, arguments: tuple[Any, ...], more: dict[str, Any]) -> Any:
    namespace, _, short = name.partition(".")
    group = next((a for a in arguments if isinstance(a, PartialGroup)), None)
    if group is None:
        return getattr(getattr(torch.ops, namespace), short).default(*arguments, **more)
    roots = ROOTS.get(short)
    if group.box is None or (roots is not None and short in POINT_TO_POINT and arguments[roots] not in group.places):
        return emulated(number, name, *arguments, **more)
    if short in SHRINK:
        fill_received(number, arguments[0], arguments[1])
    result = getattr(torch.ops.c10d, short).default(*_shrunk(short, list(arguments), group), **more)
    return (arguments[0], result[-1]) if isinstance(result, tuple) else result


ROOTS = {"broadcast_": 2, "reduce_": 3, "gather_": 3, "scatter_": 3, "send": 2, "recv_": 2}
"""Position of the argument that names a rank."""
POINT_TO_POINT = ("send", "recv_")


def _shrunk(short: str, arguments: list[Any], group: PartialGroup) -> list[Any]:
    """The arguments for a smaller group."""
    if short in ROOTS:
        root = arguments[ROOTS[short]]
        arguments[ROOTS[short]] = group.places.index(root) if root in group.places else 0
    if short in SHRINK:
        SHRINK[short](arguments, group)
    return [group.box if a is group else a for a in arguments]


def _gather(arguments: list[Any], group: PartialGroup, large: int = 0) -> None:
    """Cut the large one of two buffers to a part for each present rank, as large as the other."""
    arguments[large] = arguments[large].view(-1)[: arguments[1 - large].numel() * len(group.places)]


_scatter = partial(_gather, large=1)


def _for_each_pair(cut: Any) -> Any:
    def both(arguments: list[Any], group: PartialGroup) -> None:
        pairs = [[out, sent] for out, sent in zip(*arguments[:2])]
        for pair in pairs:
            cut(pair, group)
        arguments[:2] = [list(side) for side in zip(*pairs)]

    return both


def _all_to_all(arguments: list[Any], group: PartialGroup) -> None:
    """Two present ranks exchange as many rows as in the original."""
    for buffer, splits in ((0, 3), (1, 4)):
        every = arguments[splits] or [arguments[buffer].shape[0] // group.of] * group.of
        arguments[splits] = [every[place] for place in group.places]
        arguments[buffer] = arguments[buffer][: sum(arguments[splits])]


def _drop_missing(*sides: int) -> Any:
    """Drops the entries of missing ranks from lists of tensors."""

    def cut(arguments: list[Any], group: PartialGroup) -> None:
        for side in sides:
            arguments[side] = _of_present(arguments[side], group)

    return cut


def _of_present(entries: list[Any], group: PartialGroup) -> list[Any]:
    if entries and isinstance(entries[0], list):
        return [_of_present(inner, group) for inner in entries]
    return [entries[place] for place in group.places]


SHRINK: dict[str, Any] = {
    "_allgather_base_": _gather,
    "allgather_into_tensor_coalesced_": _for_each_pair(_gather),
    "_reduce_scatter_base_": _scatter,
    "reduce_scatter_tensor_coalesced_": _for_each_pair(_scatter),
    "alltoall_base_": _all_to_all,
    "alltoall_": _drop_missing(0, 1),
    "allgather_": _drop_missing(0),
    "reduce_scatter_": _drop_missing(1),
    "gather_": _drop_missing(0),
    "scatter_": _drop_missing(1),
}
"""Collectives whose buffers hold a part for each rank, and what cuts these to the present ranks."""
