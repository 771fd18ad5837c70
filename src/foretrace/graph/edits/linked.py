"""Which tensors of a step are one and the same, and what each call reads and makes.

A recording knows tensors and storages by number. Two tensors that look at the same place in the same way are one:
autograd's own detaches are not in a recording, so what it saved comes back under a number of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from foretrace.graph.op import Constant, Op, Value
from foretrace.graph.tensor import Tensor


class Slot(NamedTuple):
    """Stands for a tensor among the arguments or results of a call."""

    number: int


Argument: TypeAlias = "Value | Slot | list[Argument] | tuple[Argument, ...] | dict[str, Argument]"
View: TypeAlias = "tuple[object, ...]"


@dataclass(slots=True)
class Call:
    """An op with slots for its tensors."""

    row: int
    """The op's row; -1 for a look at a storage that no op has left behind."""
    op: Op
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]
    results: tuple[Argument, ...]
    made: dict[int, Tensor] = field(default_factory=dict)
    """What each slot is like that it fills."""
    reads: list[int] = field(default_factory=list)


class Linked:
    """The calls of a step over slots.

    >>> x, y = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    >>> step = Linked([Op("aten::relu", (x,), outputs=(y,)), Op("aten::add_", (y, x), outputs=(y,))])
    >>> list(step.inputs), [(call.reads, list(call.made)) for call in step.calls]
    ([0], [([0], [1]), ([1, 0], [])])
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        self.inputs: dict[int, Tensor] = {}
        """Slots that nobody fills: they were there before the step."""
        self.calls: list[Call] = []
        self.slots = 0
        self._of_tensor: dict[int, int] = {}
        self._of_view: dict[View, int] = {}
        self._on_storage: dict[int, dict[int, Tensor]] = {}
        self._keys: dict[int, list[tuple[int, View]]] = {}
        self._given: set[int] = set()
        """Storages that were there before the step."""
        for row, op in enumerate(ops):
            self._add(row, op)

    def _add(self, row: int, op: Op) -> None:
        for storage in op.frees:
            self._free(storage)
        if op.resized is not None:
            self._move(*op.resized[:2])
        reads: list[int] = []

        def read(tensor: Tensor) -> Slot:
            number = self._read(tensor, op)
            reads.append(number)
            return Slot(number)

        args = tuple(slotted(value, read) for value in op.args)
        kwargs = {key: slotted(value, read) for key, value in op.kwargs.items()}
        made: dict[int, Tensor] = {}

        def make(tensor: Tensor) -> Slot:
            number, new = self._make(tensor)
            if new:
                made[number] = tensor
            return Slot(number)

        results = tuple(slotted(value, make) for value in op.outputs)
        self.calls.append(Call(row, op, args, kwargs, results, made, reads))

    def _read(self, tensor: Tensor, reader: Op) -> int:
        known = self._known(tensor)
        if known is not None:
            return known
        alive = self._on_storage.get(tensor.storage)
        if alive and tensor.storage not in self._given:
            base = next((n for n, t in alive.items() if t.dtype == tensor.dtype and t.layout == "strided"), None)
            if base is not None:
                number = self._bind(tensor)
                look = Op("aten::as_strided", phase=reader.phase, module=reader.module)
                self.calls.append(Call(-1, look, (Slot(base),), {}, (Slot(number),), {number: tensor}, [base]))
                return number
        if tensor.storage >= 0:
            self._given.add(tensor.storage)
        number = self._bind(tensor)
        self.inputs[number] = tensor
        return number

    def _known(self, tensor: Tensor) -> int | None:
        if tensor.id < 0:
            return None
        known = self._of_tensor.get(tensor.id)
        return self._of_view.get(_view(tensor)) if known is None else known

    def _make(self, tensor: Tensor) -> tuple[int, bool]:
        """The slot of a result, and whether it is a new one: what was changed in place has one already."""
        held = self._of_tensor.get(tensor.id) if tensor.id >= 0 else None
        if held is None:
            return self._bind(tensor), True
        if tensor.storage >= 0 and held not in self._on_storage.get(tensor.storage, ()):
            self._bind(tensor, held)  # the same object, now with another storage
        return held, False

    def _bind(self, tensor: Tensor, number: int | None = None) -> int:
        if number is None:
            number, self.slots = self.slots, self.slots + 1
        if tensor.id >= 0:
            view = _view(tensor)
            self._of_tensor[tensor.id] = self._of_view[view] = number
            self._keys.setdefault(number, []).append((tensor.id, view))
            if tensor.storage >= 0:
                self._on_storage.setdefault(tensor.storage, {})[number] = tensor
        return number

    def _free(self, storage: int) -> None:
        if storage in self._given:
            return
        for number in self._on_storage.pop(storage, {}):
            for tensor, view in self._keys.pop(number, ()):
                if self._of_tensor.get(tensor) == number:
                    del self._of_tensor[tensor]
                if self._of_view.get(view) == number:
                    del self._of_view[view]

    def _move(self, old: int, new: int) -> None:
        """A storage was given another size, and with it another number."""
        if old in self._on_storage:
            self._on_storage[new] = self._on_storage.pop(old)
        if old in self._given:
            self._given.add(new)


def slotted(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A value with something else for each tensor in it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Constant):
        return value
    if isinstance(value, (list, tuple)):
        return [slotted(item, change) for item in value]
    if isinstance(value, dict):
        return {key: slotted(item, change) for key, item in value.items()}
    return value


def filled(value: Any, tensors: Callable[[int], Any]) -> Any:
    """A value with what is in each slot of it.

    >>> filled(([Slot(3), 5], None), {3: "x"}.get)
    [['x', 5], None]
    """
    kind = type(value)  # neither a slot nor a constant is of type tuple: a sweep asks for this millions of times
    if kind is Slot:
        return tensors(value.number)
    if kind is list or kind is tuple:
        return [filled(item, tensors) for item in value]
    if kind is dict:
        return {key: filled(item, tensors) for key, item in value.items()}
    return value


def slots_in(value: Any) -> Iterator[int]:
    """Numbers of the slots in a value, however deep."""
    if isinstance(value, Slot):
        yield value.number
    elif isinstance(value, (list, tuple)) and not isinstance(value, Constant):
        for item in value:
            yield from slots_in(item)


def _view(tensor: Tensor) -> View:
    if tensor.storage < 0:
        return (-1, tensor.id)
    return (tensor.storage, tensor.offset, tensor.shape, tensor.stride, tensor.dtype, tensor.layout)
