"""A step with another size: found once how it goes through the calls, then made for any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from foretrace.graph.edits.carry import Choice, StuckError, carried, search
from foretrace.graph.edits.contents import resized_content, resized_indices
from foretrace.graph.edits.layout import reaches
from foretrace.graph.edits.linked import Argument, Call, Linked, filled
from foretrace.graph.edits.on_meta import MetaDevice
from foretrace.graph.edits.readings import read
from foretrace.graph.edits.scale import Scale
from foretrace.graph.edits.step import Row, assembled
from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph, Indices
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor

META = MetaDevice()
"""Asked by all edits of a process: what it answered once it never has to compute again."""


class Resizable:
    """A flat step of which one size can be any.

    Parameters
    ----------
    graph
        The step, flat.
    step
        Its calls over slots.
    what
        The name of the size, for errors.
    scale
        From the recorded size to one that is wanted.
    choices
        Inputs that may change.
    """

    def __init__(self, graph: Graph, step: Linked, what: str, scale: Scale, choices: Sequence[Choice]) -> None:
        self._graph, self._step, self._what, self._scale = graph, step, what, scale
        sizes = {size for call in step.calls for tensor in call.made.values() for size in tensor.shape}
        try:
            self._found = search(step, choices, scale.probe(sizes), META)
        except StuckError as stuck:
            raise self._refused("NEW", f"another {what} than {scale.old}", stuck) from None
        if not self._found.inputs:
            raise ForetraceError(f"no input of {graph.source or 'the step'} holds a {what} of {scale.old}")
        self._reached = reaches(call.op for call in step.calls if call.row >= 0)

    def _refused(self, new: int | str, wanted: str, stuck: StuckError) -> ForetraceError:
        return ForetraceError(
            f"{wanted} can't be carried through {stuck}",
            f"The {self._what} was taken to be {self._scale.old}; say another with {self._what}={new}/OLD.",
        )

    def to(self, new: int) -> Graph:
        """The step with that size."""
        scale = replace(self._scale, new=new)
        if new == scale.old:
            return self._graph
        try:
            tensors = carried(self._step, self._found, scale, META)
        except StuckError as stuck:
            raise self._refused(new, f"a {self._what} of {new}", stuck) from None
        calls = [
            Retyped(call, read(call.args, reading, scale), call.kwargs)
            for call, reading in zip(self._step.calls, self._found.readings)
            if call.row >= 0
        ]
        made = rewritten(self._graph, calls, tensors, self._reached)
        made.contents = dict(self._graph.contents)
        for slot, tensor in self._step.inputs.items():
            if tensor.id in made.contents and tensor.numel and tensors[slot].shape != tensor.shape:
                share = tensors[slot].numel / tensor.numel
                made.contents[tensor.id] = resized_content(made.contents[tensor.id], share)
        made.indices = [_indices(known, self._graph.ops[known.op], made.ops[known.op]) for known in made.indices]
        made.collectives = [
            replace(c, nbytes=_exchanged(c.nbytes, self._graph.ops[c.op], made.ops[c.op])) if c.op >= 0 else c
            for c in made.collectives
        ]
        made.notes.append(f"a {self._what} of {new} instead of {scale.old}")
        return made


class Retyped(NamedTuple):
    """A call with other arguments."""

    call: Call
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]


def rewritten(graph: Graph, calls: Sequence[Retyped], tensors: dict[int, Tensor], was: dict[int, int]) -> Graph:
    """The graph of the same calls, with what their slots hold now; ``was`` is what they reached of each storage."""
    rows = [Row(_changed(*call, tensors), call.call.row) for call in calls]
    now = reaches(row.op for row in rows)
    storages = {
        # What was larger than all that was seen in it keeps its share.
        number: replace(storage, nbytes=round(storage.nbytes * now[number] / was[number]))
        if was.get(number, 0) != now.get(number, 0) and was.get(number)
        else storage
        for number, storage in graph.storages.items()
    }
    return assembled(replace(graph, storages=storages), rows)


def _changed(call: Call, args: tuple[Argument, ...], kwargs: dict[str, Argument], tensors: dict[int, Tensor]) -> Op:
    """The op with what its slots hold now; each tensor keeps its own number."""
    given, made = iter(call.op.tensors), iter(call.op.produced)

    def now(old: Tensor, slot: int) -> Tensor:
        is_ = tensors[slot]
        if (is_.shape, is_.stride, is_.offset, is_.dtype) == (old.shape, old.stride, old.offset, old.dtype):
            return old
        return Tensor(is_.shape, is_.dtype, old.device, is_.stride, is_.offset, old.id, old.storage, old.layout)

    new = call.op.__copy__()
    seen = (*zip(call.reads, call.op.tensors), *call.made.items())
    if args is call.args and kwargs is call.kwargs and all(tensors[slot] is was for slot, was in seen):
        return new
    new.args = tuple(filled(list(args), lambda slot: now(next(given), slot)))
    new.kwargs = filled(kwargs, lambda slot: now(next(given), slot))
    new.outputs = tuple(filled(list(call.results), lambda slot: now(next(made), slot)))
    return new


def _indices(known: Indices, was: Op, now: Op) -> Indices:
    """Statistics of the ids of a call whose tensors have other shapes."""

    def change(size: int) -> int:
        for old, new in zip(was.tensors, now.tensors):
            if old.shape != new.shape:
                for before, after in zip(old.shape, new.shape):
                    if before == size:
                        return after
                if old.numel == size:
                    return new.numel
        return size

    rows, count, bags = change(known.rows), change(known.count), change(known.bags)
    return (
        known
        if (rows, count, bags) == (known.rows, known.count, known.bags)
        else resized_indices(known, rows, count, bags)
    )


def _exchanged(nbytes: int, was: Op, now: Op) -> int:
    """Bytes of a collective whose tensors have other shapes."""
    before, after = (sum(tensor.nbytes for tensor in op.tensors) for op in (was, now))
    return round(nbytes * after / before) if before else nbytes


def sound(what: str, size: int) -> int:
    """The size, if it is one."""
    if not isinstance(size, int) or size < 1:
        raise ForetraceError(f"a {what} of {size} makes no sense", "It is a whole number, 1 or more.")
    return size
