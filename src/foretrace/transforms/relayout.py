"""Strides that follow from others, and the copies that they cost or save.

``reshape`` is recorded as a view where that is possible, else as a copy and a view of the copy. ``contiguous`` is
recorded as a copy where the tensor is not contiguous, else not at all. So other strides mean other calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foretrace.graph.op import Constant, Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.frees import refree
from foretrace.transforms.fresh import Fresh
from foretrace.transforms.layout import dense_strides
from foretrace.transforms.linked import Call, Linked, filled, slots_in
from foretrace.transforms.on_meta import META, Made, UnknownOnMetaError
from foretrace.transforms.other_tensors import change_tensors
from foretrace.transforms.step import Row

VIEW, COPY, VIEW_OF_COPY = "aten::view", "aten::clone", "aten::_unsafe_view"
CONTIGUOUS = Constant("memory_format", "contiguous_format")


def relaid(before: Sequence[Op], after: Sequence[Op]) -> list[Row]:
    """The calls of a step in which some make results of another layout: strides follow, copies come and go.

    Parameters
    ----------
    before
        The calls of the step.
    after
        The same, some of them swapped for others; what they make has its own strides.
    """
    return _Relaid(before, after).rows()


class _Relaid:
    def __init__(self, before: Sequence[Op], after: Sequence[Op]) -> None:
        self._after = after
        self._step = Linked(before)
        self._fresh = Fresh([*before, *after])
        self._now = dict(self._step.inputs)
        self._was = dict(self._step.inputs)
        self._freed = {storage for op in after for storage in op.frees}
        self._soon: set[int] = set()
        """Storages of copies that were not there, and of what they are copies of."""
        self._viewed = {
            call.reads[0]: call for call in self._step.calls if call.op.name == VIEW_OF_COPY and len(call.reads) == 1
        }

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for call in self._step.calls:
            self._was.update(call.made)
            if call.row < 0:
                self._look(call)
            elif self._after[call.row].name != call.op.name:
                rows.append(Row(self._swapped(call, self._after[call.row]), call.row))
            elif all(self._now[slot] is self._was[slot] for slot in call.reads):
                self._now.update(call.made)
                rows.append(Row(call.op.__copy__(), call.row))
            else:
                rows += [Row(op, call.row) for op in self._follows(call)]
        refree(rows, self._after, self._soon)
        return rows

    def _look(self, call: Call) -> None:
        """A look at a storage: like the tensor that lies there, where it was."""
        ((slot, tensor),) = call.made.items()
        was, now = self._was[call.reads[0]], self._now[call.reads[0]]
        alike = (was.shape, was.stride) == (tensor.shape, tensor.stride)
        self._now[slot] = replace(now, id=tensor.id) if now is not was and alike else tensor

    def _swapped(self, call: Call, op: Op) -> Op:
        """A call of another kind: it is given what its tensors are now, and what it makes is known."""
        slots = {t.id: slot for slot, t in zip(call.reads, call.op.tensors)}
        made = {t.id: t for t in op.produced}
        self._now.update({slot: made.get(tensor.id, tensor) for slot, tensor in call.made.items()})
        new = op.__copy__()
        new.args = change_tensors(op.args, lambda t: self._as(t, slots[t.id]) if t.id in slots else t)
        return new

    def _as(self, tensor: Tensor, slot: int) -> Tensor:
        """What is in a slot, by the number that a call knows it by."""
        return tensor if self._now[slot] is self._was[slot] else replace(self._now[slot], id=tensor.id)

    def _follows(self, call: Call) -> list[Op]:
        name = call.op.name
        if name == COPY and call.op.kwargs.get("memory_format") == CONTIGUOUS and self._needs_none(call):
            (slot,) = call.made
            self._now[slot] = self._now[call.reads[0]]
            return []
        op = self._given(call)
        if name in (VIEW, VIEW_OF_COPY):
            return self._viewing(call, op)
        self._make(call, op)
        return [op]

    def _needs_none(self, call: Call) -> bool:
        """Whether a copy into rows without gaps has become needless: its view is one of the tensor itself."""
        given = self._now[call.reads[0]]
        viewed = self._viewed.get(next(iter(call.made), -1))
        if viewed is None:
            return given.stride == dense_strides(given.shape)
        return self._asked(VIEW, (given, viewed.op.args[1])) is not None

    def _viewing(self, call: Call, op: Op) -> list[Op]:
        given = self._now[call.reads[0]]
        made = self._asked(VIEW, (given, op.args[1]))
        ((slot, was),) = call.made.items() if call.made else ((-1, given),)
        if made is not None:
            copied = call.op.name == VIEW_OF_COPY and given.storage == self._was[call.reads[0]].storage
            op.name = VIEW_OF_COPY if copied else VIEW
            self._now[slot] = replace(was, stride=made.stride, offset=given.offset, storage=given.storage)
            op.outputs = (self._now[slot],)
            return [op]
        copy = self._fresh.tensor(given.shape, given)
        self._soon.update({copy.storage, given.storage} & (self._freed | {copy.storage}))
        copying = op.__copy__()
        copying.name, copying.args, copying.outputs = COPY, (op.args[0],), (copy,)
        copying.kwargs = {"memory_format": CONTIGUOUS}
        op.name, op.args, op.entered = VIEW_OF_COPY, (copy, op.args[1]), 0
        self._now[slot] = replace(was, stride=dense_strides(was.shape), offset=0, storage=copy.storage)
        op.outputs = (self._now[slot],)
        return [copying, op]

    def _given(self, call: Call) -> Op:
        """The call with its arguments as they are now."""
        given = iter(call.op.tensors)
        op = call.op.__copy__()
        op.args = tuple(filled(list(call.args), lambda slot: self._as(next(given), slot)))
        op.kwargs = filled(call.kwargs, lambda slot: self._as(next(given), slot))
        return op

    def _make(self, call: Call, op: Op) -> None:
        """Find the strides of what a call makes; what the meta device does not know stays as it was."""
        result = self._asked(op.name, op.args, op.overload, op.kwargs)
        told = list(_flat(result))
        slots = list(slots_in(call.results))
        for slot, made in zip(slots, told if len(told) == len(slots) else [None] * len(slots)):
            if slot in call.made:
                self._now[slot] = self._laid(call, call.made[slot], made)
        produced = iter(call.op.produced)
        op.outputs = tuple(filled(list(call.results), lambda slot: self._as(next(produced), slot)))

    def _laid(self, call: Call, was: Tensor, made: Made | None) -> Tensor:
        base = next((slot for slot in call.reads if self._was[slot].storage == was.storage >= 0), None)
        if made is None or made.shape != was.shape:
            return was
        if base is None:
            return was if made.stride == was.stride else replace(was, stride=made.stride)
        at = self._now[base]
        return replace(was, stride=made.stride, offset=at.offset + made.offset, storage=at.storage)

    def _asked(self, name: str, args: Any, overload: str = "default", kwargs: Any = None) -> Any:
        try:
            return META.called(name, overload, args, kwargs or {})
        except (UnknownOnMetaError, ValueError):
            return None


def _flat(value: Any) -> list[Made | None]:
    if isinstance(value, list):
        return [item for each in value for item in _flat(each)]
    return [value]
