"""A flat step written again over other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Storage, Tensor
from foretrace.transforms.layout import reaches
from foretrace.transforms.linked import Argument, Call, filled
from foretrace.transforms.step import Row, assembled


class Retyped(NamedTuple):
    """A call with other arguments."""

    call: Call
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]


class Script:
    """A flat step that is written again and again over other tensors; what stays the same is worked out once.

    Parameters
    ----------
    graph
        The step.
    calls
        All its calls.
    moving
        Those of them whose tensors may be others.
    """

    def __init__(self, graph: Graph, calls: Sequence[Call], moving: Sequence[Call]) -> None:
        self._known = graph.storages
        self._template = assembled(graph, [Row(call.op, call.row) for call in calls])
        self._ops = [call.op for call in calls]
        places = {call.row: place for place, call in enumerate(calls)}
        self._places = [places[call.row] for call in moving]
        still = set(range(len(calls))) - set(self._places)
        self._still = reaches(self._ops[place] for place in still)
        self._was = _largest(self._still, reaches(call.op for call in moving))

    def over(self, moving: Sequence[Retyped], tensors: dict[int, Tensor]) -> Graph:
        """The graph of the same calls, with what the slots of the moving ones hold now."""
        changed = [_changed(*call, tensors) for call in moving]
        ops = list(self._ops)
        for place, op in zip(self._places, changed):
            ops[place] = op
        now, like = _largest(self._still, reaches(changed)), self._template
        return replace(
            like,
            ops=replace(like.ops, detail=lambda row: ops[row].__copy__()),
            storages={n: self._sized(storage, now.get(n, 0)) for n, storage in like.storages.items()},
            notes=list(like.notes),
        )

    def _sized(self, storage: Storage, now: int) -> Storage:
        """A storage of which calls now see so many bytes; one that was larger than what they saw stays so in
        proportion."""
        was, known = self._was.get(storage.id, 0), self._known.get(storage.id)
        nbytes = known.nbytes if known else 0
        if was and was != now:
            nbytes = round(nbytes * now / was)
        return Storage(storage.id, max(nbytes, now), storage.device, storage.birth, storage.death)


def _largest(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {**one, **{number: max(size, one.get(number, 0)) for number, size in other.items()}}


def _changed(call: Call, args: tuple[Argument, ...], kwargs: dict[str, Argument], tensors: dict[int, Tensor]) -> Op:
    """The op with what its slots hold now; each tensor keeps its own number."""
    given, made = iter(call.op.tensors), iter(call.op.produced)

    def now(old: Tensor, slot: int) -> Tensor:
        is_ = tensors[slot]
        if look_of(is_) == look_of(old):
            return old
        return Tensor(is_.shape, is_.dtype, old.device, is_.stride, is_.offset, old.id, old.storage, old.layout)

    new = call.op.__copy__()
    new.args = tuple(filled(list(args), lambda slot: now(next(given), slot)))
    new.kwargs = filled(kwargs, lambda slot: now(next(given), slot))
    new.outputs = tuple(filled(list(call.results), lambda slot: now(next(made), slot)))
    return new


def look_of(tensor: Tensor) -> tuple[object, ...]:
    """How a tensor looks, and where in its storage it begins: equal for one that stays as it was."""
    return tensor.shape, tensor.stride, tensor.offset, tensor.dtype
