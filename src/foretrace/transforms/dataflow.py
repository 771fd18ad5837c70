"""Dataflow of a step: its calls over numbered slots, one slot per tensor (as in single-assignment form).

Transforms work on slots rather than on tensor ids, since a tensor that autograd saved comes back under a new id, and a
storage may be viewed without a recorded call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from foretrace.graph.bindings import Bindings
from foretrace.graph.op import Op, Tensor, Value, map_tensors


class Slot(NamedTuple):
    """Stands for a tensor among the arguments or results of a call."""

    number: int


Argument: TypeAlias = "Value | Slot | list[Argument] | tuple[Argument, ...] | dict[str, Argument]"


@dataclass(slots=True)
class SlotCall:
    """An op with slots in place of its tensors."""

    row: int
    """The op's row; -1 for an inferred view of a storage that no recorded op made."""
    op: Op
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]
    results: tuple[Argument, ...]
    made: dict[int, Tensor] = field(default_factory=dict)
    """The slots that it fills, with their tensors."""
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
        """Slots that no call fills: their tensors existed before the step."""
        self.calls: list[SlotCall] = []
        self._slots = count()
        self._bindings = Bindings[int]()
        self._preexisting: set[int] = set()
        """Storages that existed before the step."""
        for row, op in enumerate(ops):
            self._add(row, op)

    @property
    def tensors(self) -> dict[int, Tensor]:
        """The tensor of every slot."""
        return self.inputs | {slot: tensor for call in self.calls for slot, tensor in call.made.items()}

    def _add(self, row: int, op: Op) -> None:
        for storage in op.frees:
            if storage not in self._preexisting:
                self._bindings.release(storage)
        if op.resized is not None:
            old, new, _ = op.resized  # a storage under a new id
            self._bindings.move(old, new)
            if old in self._preexisting:
                self._preexisting.add(new)
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
        self.calls.append(SlotCall(row, op, args, kwargs, results, made, reads))

    def _read(self, tensor: Tensor, reader: Op) -> int:
        known = self._bindings.find(tensor)
        if known is not None:
            return known
        base = self._bindings.base_of(tensor) if tensor.storage not in self._preexisting else None
        number = self._new_slot(tensor)
        if base is not None:
            view = Op("aten::as_strided", phase=reader.phase, module=reader.module)
            self.calls.append(SlotCall(-1, view, (Slot(base),), {}, (Slot(number),), {number: tensor}, [base]))
            return number
        if tensor.storage >= 0:
            self._preexisting.add(tensor.storage)
        self.inputs[number] = tensor
        return number

    def _make(self, tensor: Tensor) -> tuple[int, bool]:
        """The slot of a result, and whether it is new: a tensor changed in place has one already."""
        known = self._bindings.by_id(tensor)
        if known is None:
            return self._new_slot(tensor), True
        if tensor.storage >= 0 and known not in self._bindings.on(tensor.storage):
            self._bindings.rebind(tensor, known)
        return known, False

    def _new_slot(self, tensor: Tensor) -> int:
        number = next(self._slots)
        self._bindings.bind(tensor, number)
        return number


def is_sequence(value: Any) -> bool:
    """Whether a value is a list or tuple of values; slots and constants are tuples too, but count as one value."""
    return type(value) in (list, tuple)


def substitute(value: Any, tensors: Callable[[int], Any]) -> Any:
    """A value with the tensor of each slot in its place; tuples become lists.

    >>> substitute(([Slot(3), 5], None), {3: "x"}.get)
    [['x', 5], None]
    """
    kind = type(value)  # neither a slot nor a constant is of type tuple; called millions of times in a sweep
    if kind is Slot:
        return tensors(value.number)
    if kind is list or kind is tuple:
        return [substitute(item, tensors) for item in value]
    if kind is dict:
        return {key: substitute(item, tensors) for key, item in value.items()}
    return value


def rebuild(
    call: SlotCall,
    read: Callable[[int, Tensor], Tensor],
    make: Callable[[int, Tensor], Tensor] | None = None,
    op: Op | None = None,
) -> Op:
    """A copy of a call's op with other tensors.

    ``read`` and ``make`` give the tensor for a slot among the arguments and results, from the one there; results stay
    if ``make`` is None. ``op`` replaces the call's own op, with the same slots.
    """
    op = (op or call.op).__copy__()
    given, made = iter(op.tensors), iter(op.produced)
    op.args = tuple(substitute(list(call.args), lambda slot: read(slot, next(given))))
    op.kwargs = substitute(call.kwargs, lambda slot: read(slot, next(given)))
    if make is not None:
        op.outputs = tuple(substitute(list(call.results), lambda slot: make(slot, next(made))))
    return op


def with_elements(op: Op, keep: Sequence[bool]) -> Op:
    """A foreach call over some elements of its lists only."""

    def kept(value: Any) -> Any:
        fits = is_sequence(value) and len(value) == len(keep)
        return [item for item, stays in zip(value, keep) if stays] if fits else value

    op = op.__copy__()
    op.args, op.outputs = tuple(map(kept, op.args)), tuple(map(kept, op.outputs))
    op.kwargs = {name: kept(value) for name, value in op.kwargs.items()}
    return op


def slots_in(value: Any) -> Iterator[int]:
    """Numbers of the slots in a value, however deep."""
    if isinstance(value, Slot):
        yield value.number
    elif is_sequence(value):
        for item in value:
            yield from slots_in(item)
