"""Which inputs of a step must keep one shape: a weight, its momentum, and every other look at their storages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from foretrace.transforms.linked import Call, Linked, Slot, is_sequence


def companions(step: Linked) -> list[tuple[int, ...]]:
    """Inputs by those that the optimizer works on together, each group in the order of the step.

    >>> from foretrace.graph import Op, Tensor
    >>> weight, momentum, data = (Tensor((4,), "float32", id=n, storage=n) for n in range(3))
    >>> read = Op("aten::mul", (weight, data), phase="forward")
    >>> companions(Linked([read, Op("aten::_foreach_add_", ([weight], [momentum]), phase="optimizer")]))
    [(0, 2), (1,)]
    """
    together = _Together()
    storages: dict[int, int] = {}
    for slot, tensor in step.inputs.items():
        together.find(slot)
        if tensor.storage >= 0:
            together.join(slot, storages.setdefault(tensor.storage, slot))
    shapes = {slot: tensor.shape for slot, tensor in step.inputs.items()}
    for call in step.calls:
        shapes.update({slot: tensor.shape for slot, tensor in call.made.items()})
        if call.op.phase == "optimizer":
            for first, *others in _side_by_side(call):
                for other in others:
                    if shapes[first] == shapes[other]:
                        together.join(first, other)
    return together.groups(step.inputs)


def _side_by_side(call: Call) -> Iterator[list[int]]:
    """Slots that a call works on at once: its arguments, and those at the same place of its lists."""
    values: list[Any] = [*call.args, *call.kwargs.values(), *call.results]
    alone = [value.number for value in values if isinstance(value, Slot)]
    lists = [value for value in values if is_sequence(value)]
    if alone:
        yield alone
    for row in zip_longest(*lists):
        found = [value.number for value in row if isinstance(value, Slot)]
        if found:
            yield found


class _Together:
    """Sets that grow together."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def find(self, slot: int) -> int:
        above = self._above.setdefault(slot, slot)
        while above != self._above[above]:
            above = self._above[above] = self._above[self._above[above]]
        return above

    def join(self, first: int, second: int) -> None:
        a, b = sorted((self.find(first), self.find(second)))
        self._above[b] = a

    def groups(self, slots: Iterable[int]) -> list[tuple[int, ...]]:
        found: dict[int, list[int]] = {}
        for slot in slots:
            found.setdefault(self.find(slot), []).append(slot)
        return [tuple(group) for group in found.values()]
