"""Two runs of blocks of a model that follow each other: one more put between them, or the second left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.frees import refree
from foretrace.transforms.fresh import Fresh
from foretrace.transforms.inputs import Given
from foretrace.transforms.linked import Call, Linked, filled, is_sequence
from foretrace.transforms.members import Owners, lists_of
from foretrace.transforms.parallel.blocks import block_of
from foretrace.transforms.step import Row, assembled, storages_in

Stretches = tuple[list[Call], list[Call]]
SECOND, OTHERS = 1, 0


class Neighbours:
    """Two runs of as many blocks, one right after the other, and what belongs to the second alone.

    Parameters
    ----------
    graph
        The step, flat.
    step
        Its calls over slots.
    forward
        The calls of the first run and of the second.
    backward
        The calls of the second run and of the first.
    names
        For each module of the second run, the name of the one that may be put before it.
    """

    def __init__(
        self, graph: Graph, step: Linked, forward: Stretches, backward: Stretches, names: dict[str, str]
    ) -> None:
        self._graph, self._step, self._ops = graph, step, list(graph.ops)
        self._forward, self._backward, self._names = forward, backward, names
        self._like = {a: b for one, two in zip(*forward) for a, b in zip(one.made, two.made)}
        """For what the first run makes in forward, what the second does."""
        self._passed = {slot for call in backward[0] for slot in call.made}
        """What the second run makes in backward: the first reads its gradient there."""
        self._second = {id(call) for call in (*forward[1], *backward[0])}
        self._first_backward = {id(call) for call in backward[1]}
        made = {slot for call in forward[1] for slot in call.made} | self._passed
        weights = self._weights()
        known = dict.fromkeys(Given(step).weights, OTHERS)
        known.update(dict.fromkeys([*weights, *self._passed], SECOND))
        self._owners = Owners(step, known, {call.row for part in (*forward, *backward) for call in part})
        self._own = made | weights | self._owners.slots(SECOND)

    @property
    def blocks(self) -> int:
        """How many a run has."""
        return len(self._names)

    def _weights(self) -> set[int]:
        """Inputs of the second run that are others than those of the first at the same place."""
        inputs = self._step.inputs
        return {
            theirs
            for one, two in zip(*self._forward)
            for ours, theirs in zip(one.reads, two.reads)
            if ours != theirs and theirs in inputs
        }

    def with_more(self) -> Graph:
        """The step with blocks like the second run's between the two."""
        image = _Image(self._ops, self._step, self._own)
        updates = [call for call in self._step.calls if self._owners.of_row.get(call.row) == SECOND]
        between = {
            id(self._forward[1][0]): [Row(image.op(call), -1) for call in self._forward[1] if call.row >= 0],
            id(self._backward[1][0]): [
                Row(image.op(call, self._linked(call, other)), -1)
                for call, other in zip(*self._backward)
                if call.row >= 0
            ],
        }
        if updates:
            between[id(updates[0])] = [Row(image.op(call), -1) for call in updates]
        for row in (row for new in between.values() for row in new):
            row.op.module = self._renamed(row.op.module)
        rows: list[Row] = []
        for call in self._step.calls:
            rows += between.get(id(call), [])
            if call.row >= 0:
                rows.append(Row(self._met(call, image), call.row))
        refree(rows, self._ops, image.storages(self._step.inputs))
        return assembled(self._graph, rows)

    def _renamed(self, module: str) -> str:
        old = [*self._names]
        place = block_of(module, old)
        return module if place < 0 else self._names[old[place]] + module.removeprefix(old[place])

    def _linked(self, call: Call, other: Call) -> dict[int, int]:
        """Places at which the first run reads gradients of the second: what is put between them reads them now."""
        pairs = enumerate(zip(call.reads, other.reads))
        return {place: theirs for place, (_, theirs) in pairs if theirs in self._passed}

    def _met(self, call: Call, image: _Image) -> Op:
        """A call that stays: what the two runs gave each other comes from the one between them."""
        if id(call) in self._second:
            return image.reading(call, self._like.get)
        if id(call) in self._first_backward:
            return image.reading(call, lambda slot: slot if slot in self._passed else None)
        ours = self._places(call)
        return image.longer(call, ours) if any(ours) else call.op.__copy__()

    def _places(self, call: Call) -> list[bool]:
        """For a call over lists, which places are the second run's."""
        return [owner == SECOND for owner in self._owners.places(call)] if lists_of(call) else []

    def with_less(self) -> Graph:
        """The step without the second run."""
        back = {theirs: ours for ours, theirs in self._like.items()}
        for one, two in zip(*self._backward):
            back.update((theirs, ours) for ours, theirs in zip(one.reads, two.reads) if theirs in self._passed)
        image = _Image(self._ops, self._step, set())
        image.stand_in(back)
        gone = {call.row for call in (*self._forward[1], *self._backward[0])}
        gone |= {row for row, owner in self._owners.of_row.items() if owner == SECOND}
        rows = []
        for call in self._step.calls:
            if call.row >= 0 and call.row not in gone:
                ours = self._places(call)
                op = image.shorter(call, ours) if any(ours) else image.reading(call, lambda slot: slot)
                rows.append(Row(op, call.row))
        refree(rows, self._ops)
        seen, before = (storages_in(ops) for ops in ([row.op for row in rows], self._ops))
        kept = {number: storage for number, storage in self._graph.storages.items() if number not in before - seen}
        return assembled(replace(self._graph, storages=kept), rows)


class _Image:
    """What belongs to a run of blocks, once more under other numbers."""

    def __init__(self, ops: list[Op], step: Linked, own: set[int]) -> None:
        self._fresh = Fresh(ops)
        self._storage: dict[int, int] = {}
        self._old = dict(_slots(step))
        self.now: dict[int, Tensor] = {}
        theirs = {tensor.storage for slot, tensor in self._old.items() if slot not in own}
        for slot, tensor in self._old.items():
            if slot in own:
                self.now[slot] = self._again(tensor, theirs)

    def _again(self, tensor: Tensor, theirs: set[int]) -> Tensor:
        made = self._fresh.tensor(tensor.shape, tensor)
        if tensor.storage in theirs or tensor.storage < 0:  # a look at what is not the run's own
            return replace(tensor, id=made.id)
        storage = self._storage.setdefault(tensor.storage, made.storage)
        return replace(tensor, id=made.id, storage=storage)

    def stand_in(self, back: dict[int, int]) -> None:
        """Let what is in some slots stand for what was in others."""
        self.now = {slot: self._old[other] for slot, other in back.items()}

    def storages(self, inputs: dict[int, Tensor]) -> set[int]:
        """Those that are made in the step."""
        given = {tensor.storage for tensor in inputs.values()}
        return {new for old, new in self._storage.items() if old not in given}

    def op(self, call: Call, links: dict[int, int] | None = None) -> Op:
        """A call of the run, made for its image; at some places it is given what is in other slots as they were."""
        places = iter(range(len(call.reads)))
        linked = links or {}

        def read(slot: int, old: Tensor) -> Tensor:
            place = next(places)
            return self._old[linked[place]] if place in linked else self.now.get(slot, old)

        return _with(call, read, lambda slot, old: self.now.get(slot, old))

    def reading(self, call: Call, other: Callable[[int], int | None]) -> Op:
        """A call that stays, given the image of other slots where there is one."""

        def read(slot: int, old: Tensor) -> Tensor:
            known = other(slot)
            return old if known is None else self.now.get(known, old)

        return _with(call, read, lambda slot, old: old)

    def longer(self, call: Call, ours: Sequence[bool]) -> Op:
        """A call over lists, the image's places before those of the run."""
        image = self.op(call)

        def both(old: Any, new: Any) -> Any:
            if not _is_list(old, len(ours)):
                return old
            first = ours.index(True)
            return [*old[:first], *(item for item, own in zip(new, ours) if own), *old[first:]]

        return _over_lists(call.op, image, both)

    def shorter(self, call: Call, ours: Sequence[bool]) -> Op:
        """A call over lists, without the places of the run."""

        def without(old: Any, _: Any) -> Any:
            return [item for item, own in zip(old, ours) if not own] if _is_list(old, len(ours)) else old

        return _over_lists(call.op, call.op, without)


def _slots(step: Linked) -> Iterator[tuple[int, Tensor]]:
    yield from step.inputs.items()
    for call in step.calls:
        yield from call.made.items()


def _with(call: Call, read: Callable[[int, Tensor], Tensor], make: Callable[[int, Tensor], Tensor]) -> Op:
    given, made = iter(call.op.tensors), iter(call.op.produced)
    op = call.op.__copy__()
    op.args = tuple(filled(list(call.args), lambda slot: read(slot, next(given))))
    op.kwargs = filled(call.kwargs, lambda slot: read(slot, next(given)))
    op.outputs = tuple(filled(list(call.results), lambda slot: make(slot, next(made))))
    return op


def _over_lists(old: Op, new: Op, change: Callable[[Any, Any], Any]) -> Op:
    op = old.__copy__()
    op.args = tuple(map(change, old.args, new.args))
    op.kwargs = {name: change(value, new.kwargs[name]) for name, value in old.kwargs.items()}
    op.outputs = tuple(map(change, old.outputs, new.outputs))
    return op


def _is_list(value: Any, count: int) -> bool:
    return is_sequence(value) and len(value) == count
