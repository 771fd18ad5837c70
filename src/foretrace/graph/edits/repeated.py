"""Two blocks of a model that follow each other: one more put between them, or the second left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from foretrace.graph.edits.frees import refree
from foretrace.graph.edits.fresh import Fresh
from foretrace.graph.edits.inputs import Given
from foretrace.graph.edits.linked import Call, Linked, Slot, filled
from foretrace.graph.edits.members import Owners, lists_of
from foretrace.graph.edits.step import Row, assembled
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor

SECOND, OTHERS = 1, 0


class Neighbours:
    """Two such blocks, and what of the second belongs to it alone.

    Parameters
    ----------
    graph
        The step, flat.
    step
        Its calls over slots.
    forward
        The calls of the first block and of the second.
    backward
        The calls of the second block and of the first.
    """

    def __init__(
        self, graph: Graph, step: Linked, forward: tuple[list[Call], list[Call]], backward: tuple[list[Call], list[Call]]
    ) -> None:
        self._graph, self._step, self._ops = graph, step, list(graph.ops)
        self._forward, self._backward = forward, backward
        self._like = {a: b for one, two in zip(*forward) for a, b in zip(one.made, two.made)}
        """For what the first block makes in forward, what the second does."""
        self._passed = {slot for call in backward[0] for slot in call.made}
        """What the second block makes in backward: the first reads its gradient there."""
        made = {slot for call in forward[1] for slot in call.made} | self._passed
        weights = self._weights()
        known = dict.fromkeys(Given(step).weights, OTHERS)
        known.update(dict.fromkeys([*weights, *self._passed], SECOND))
        self._owners = Owners(step, known, {call.row for part in (*forward, *backward) for call in part})
        self._own = made | weights | self._owners.slots(SECOND)

    def _weights(self) -> set[int]:
        """Inputs of the second block that are others than those of the first at the same place."""
        inputs = self._step.inputs
        return {
            theirs
            for one, two in zip(*self._forward)
            for ours, theirs in zip(one.reads, two.reads)
            if ours != theirs and theirs in inputs
        }

    def with_one_more(self) -> Graph:
        """The step with a block like the second between the two."""
        image = _Image(self._ops, self._step, self._own)
        behind, ahead = self._forward[0][-1], self._backward[1][0]
        rows: list[Row] = []
        optimizer = iter(row for row, owner in sorted(self._owners.of_row.items()) if owner == SECOND)
        first_update = next(optimizer, None)
        for call in self._step.calls:
            if call is ahead:
                rows += self._copied(zip(*self._backward), image, self._later)
            if call.row == first_update:
                owned = {row for row, owner in self._owners.of_row.items() if owner == SECOND}
                rows += [Row(image.op(each), -1) for each in self._step.calls if each.row in owned]
            if call.row >= 0:
                rows.append(Row(self._met(call, image), call.row))
            if call is behind:
                rows += self._copied(zip(*self._forward), image, lambda call, other, place: None, second=True)
        refree(rows, self._ops, image.storages(self._step.inputs))
        return assembled(self._graph, rows)

    def _copied(
        self, pairs: Iterator[tuple[Call, Call]], image: _Image, link: Callable[[Call, Call, int], int | None],
        second: bool = False,
    ) -> list[Row]:  # fmt: skip
        rows = []
        for one, two in pairs:
            call, other = (two, one) if second else (one, two)
            links = {place: slot for place in range(len(call.reads)) if (slot := link(call, other, place)) is not None}
            op = image.op(call, links)
            if call.row >= 0:
                rows.append(Row(op, -1))
        return rows

    def _later(self, call: Call, other: Call, place: int) -> int | None:
        """The gradient that the first block reads of the second: what is put between them reads it now."""
        slot = other.reads[place] if place < len(other.reads) else -1
        return slot if slot in self._passed else None

    def _met(self, call: Call, image: _Image) -> Op:
        """A call that stays: what the two blocks gave each other comes from the one between them."""
        op = call.op.__copy__()
        if any(call is each for each in self._forward[1]) or any(call is each for each in self._backward[0]):
            return image.reading(call, lambda slot: self._like.get(slot))
        if any(call is each for each in self._backward[1]):
            return image.reading(call, lambda slot: slot if slot in self._passed else None)
        if (lists := lists_of(call)) and SECOND in (owners := self._owners.places(call)):
            return image.longer(call, [owner == SECOND for owner in owners], len(lists[0]))
        return op

    def with_one_less(self) -> Graph:
        """The step without the second block."""
        back = {theirs: ours for ours, theirs in self._like.items()}
        for one, two in zip(*self._backward):
            for ours, theirs in zip(one.reads, two.reads):
                if theirs in self._passed:
                    back[theirs] = ours
        tensors = {slot: tensor for call in self._step.calls for slot, tensor in call.made.items()}
        gone = {call.row for part in (self._forward[1], self._backward[0]) for call in part}
        gone |= {row for row, owner in self._owners.of_row.items() if owner == SECOND}
        image = _Image(self._ops, self._step, set())
        image.now = {slot: tensors[other] for slot, other in back.items() if other in tensors}
        rows = []
        for call in self._step.calls:
            if call.row >= 0 and call.row not in gone:
                if (lists := lists_of(call)) and SECOND in (owners := self._owners.places(call)):
                    rows.append(Row(image.shorter(call, [owner != SECOND for owner in owners], len(lists[0])), call.row))
                else:
                    rows.append(Row(image.reading(call, lambda slot: slot if slot in back else None), call.row))
        refree(rows, self._ops)
        seen = {tensor.storage for row in rows for tensor in (*row.op.tensors, *row.op.produced)}
        lost = {tensor.storage for op in self._ops for tensor in (*op.tensors, *op.produced)} - seen
        kept = {number: storage for number, storage in self._graph.storages.items() if number not in lost}
        return assembled(replace(self._graph, storages=kept), rows)


class _Image:
    """What belongs to a block, once more under other numbers."""

    def __init__(self, ops: list[Op], step: Linked, own: set[int]) -> None:
        self._fresh = Fresh(ops)
        self._own, self._storage = own, dict[int, int]()
        self.now: dict[int, Tensor] = {}
        theirs = {t.storage for slot, t in _slots(step) if slot not in own}
        for slot, tensor in _slots(step):
            if slot in own:
                self.now[slot] = self._again(tensor, theirs)

    def _again(self, tensor: Tensor, theirs: set[int]) -> Tensor:
        made = self._fresh.tensor(tensor.shape, tensor)
        if tensor.storage in theirs or tensor.storage < 0:  # a look at what is not the block's own
            return replace(tensor, id=made.id)
        storage = self._storage.setdefault(tensor.storage, made.storage)
        return replace(tensor, id=made.id, storage=storage)

    def storages(self, inputs: dict[int, Tensor]) -> set[int]:
        """Those that are made in the step."""
        given = {tensor.storage for tensor in inputs.values()}
        return {new for old, new in self._storage.items() if old not in given}

    def op(self, call: Call, links: dict[int, int] | None = None) -> Op:
        """A call of the block, made for its image; at some places it is given what is in other slots."""
        place = -1
        given = iter(call.op.tensors)

        def read(slot: int) -> Tensor:
            nonlocal place
            place += 1
            old = next(given)
            if links and place in links:
                return self._linked[links[place]]
            return self.now.get(slot, old)

        made = iter(call.op.produced)
        op = call.op.__copy__()
        op.args, op.kwargs = tuple(filled(list(call.args), read)), filled(call.kwargs, read)
        op.outputs = tuple(filled(list(call.results), lambda slot: self.now.get(slot, next(made))))
        return op
