"""A step over slots: which tensors are one and the same, and what each call reads and makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from foretrace.graph.bindings import Bindings
from foretrace.graph.op import Op, Value, map_tensors
from foretrace.graph.tensor import Tensor


class Slot(NamedTuple):
    """Stands for a tensor among the arguments or results of a call."""

    number: int


Argument: TypeAlias = "Value | Slot | list[Argument] | tuple[Argument, ...] | dict[str, Argument]"


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


class Dataflow:
    """The calls of a step over slots.

    >>> x, y = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    >>> step = Dataflow([Op("aten::relu", (x,), outputs=(y,)), Op("aten::add_", (y, x), outputs=(y,))])
    >>> list(step.inputs), [(call.reads, list(call.made)) for call in step.calls]
    ([0], [([0], [1]), ([1, 0], [])])
    """

    def __init__(self, ops: Sequence[Op]) -> None:
        self.inputs: dict[int, Tensor] = {}
        """Slots that nobody fills: they were there before the step."""
        self.calls: list[Call] = []
        self._slots = count()
        self._bindings = Bindings[int]()
        self._given: set[int] = set()
        """Storages that were there before the step."""
        for row, op in enumerate(ops):
            self._add(row, op)

    def _add(self, row: int, op: Op) -> None:
        for storage in op.frees:
            if storage not in self._given:
                self._bindings.release(storage)
        if op.resized is not None:
            self._move(*op.resized[:2])
        reads: list[int] = []

        def read(tensor: Tensor) -> Slot:
            number = self._read(tensor, op)
            reads.append(number)
            return Slot(number)

        args, kwargs = map_tensors(op.args, read), map_tensors(op.kwargs, read)
        made: dict[int, Tensor] = {}

        def make(tensor: Tensor) -> Slot:
            number, new = self._make(tensor)
            if new:
                made[number] = tensor
            return Slot(number)

        results = map_tensors(op.outputs, make)
        self.calls.append(Call(row, op, args, kwargs, results, made, reads))

    def _read(self, tensor: Tensor, reader: Op) -> int:
        known = self._bindings.find(tensor)
        if known is not None:
            return known
        base = self._bindings.base_of(tensor) if tensor.storage not in self._given else None
        number = self._bound(tensor)
        if base is not None:
            look = Op("aten::as_strided", phase=reader.phase, module=reader.module)
            self.calls.append(Call(-1, look, (Slot(base),), {}, (Slot(number),), {number: tensor}, [base]))
            return number
        if tensor.storage >= 0:
            self._given.add(tensor.storage)
        self.inputs[number] = tensor
        return number

    def _make(self, tensor: Tensor) -> tuple[int, bool]:
        """The slot of a result, and whether it is a new one: what was changed in place has one already."""
        held = self._bindings.by_id(tensor)
        if held is None:
            return self._bound(tensor), True
        if tensor.storage >= 0 and held not in self._bindings.on(tensor.storage):
            self._bindings.rebind(tensor, held)
        return held, False

    def _bound(self, tensor: Tensor) -> int:
        """A new slot for a tensor."""
        number = next(self._slots)
        self._bindings.bind(tensor, number)
        return number

    def _move(self, old: int, new: int) -> None:
        """A storage was given another size, and with it another number."""
        self._bindings.move(old, new)
        if old in self._given:
            self._given.add(new)


def is_sequence(value: Any) -> bool:
    """Whether a value is a list or a tuple of others; slots and constants are tuples too, and stand for one thing.

    >>> is_sequence([Slot(3)]), is_sequence(Slot(3))
    (True, False)
    """
    return type(value) in (list, tuple)


def substitute(value: Any, tensors: Callable[[int], Any]) -> Any:
    """A value with what is in each slot of it.

    >>> substitute(([Slot(3), 5], None), {3: "x"}.get)
    [['x', 5], None]
    """
    kind = type(value)  # neither a slot nor a constant is of type tuple: a sweep asks for this millions of times
    if kind is Slot:
        return tensors(value.number)
    if kind is list or kind is tuple:
        return [substitute(item, tensors) for item in value]
    if kind is dict:
        return {key: substitute(item, tensors) for key, item in value.items()}
    return value


def slots_in(value: Any) -> Iterator[int]:
    """Numbers of the slots in a value, however deep."""
    if isinstance(value, Slot):
        yield value.number
    elif is_sequence(value):
        for item in value:
            yield from slots_in(item)
