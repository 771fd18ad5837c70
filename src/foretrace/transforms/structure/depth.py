"""More or fewer of the blocks that a model repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from string import digits
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.dataflow import Call, Dataflow, is_sequence, substitute
from foretrace.transforms.inputs import StepInputs, WeightOwners, foreach_lists
from foretrace.transforms.resize.resizable import check_size
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, editable_step, recompute_frees, storages_in

PHASES = ("forward", "backward")
MOST_BLOCKS = 1000
"""Their calls are all written down: more would fill the memory."""


def depth(graph: Graph, blocks: int) -> Graph:
    """The step of a model with so many blocks.

    Blocks are modules that follow each other, make the same calls, and differ in a number in their names. New ones are
    put between two of them, in forward and in backward; they have weights of their own, which the optimizer updates.
    Where there shall be fewer, some are left out, and their neighbours meet.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    blocks
        How many.
    """
    check_size("depth", blocks)
    graph, ops = editable_step(graph)
    was = len(repeated_blocks(ops))
    if was < 2:
        raise ForetraceError(f"{graph.title} shows no repeated blocks", "Record it, or sketch it: traces lack modules.")
    if blocks == 1:
        raise ForetraceError("a depth of 1 is no repetition", "The least is 2.")
    if blocks > MOST_BLOCKS:
        raise ForetraceError(f"a depth of {blocks:,} is more than any model has", f"The most is {MOST_BLOCKS:,}.")
    left = blocks - was
    while left:
        pair = _neighbours(graph, abs(left))
        graph = pair.with_more() if left > 0 else pair.with_less()
        left += -pair.blocks if left > 0 else pair.blocks
    if blocks != was:
        graph.notes.append(f"{blocks} blocks instead of {was}")
    return graph


def _neighbours(graph: Graph, most: int) -> AdjacentBlocks:
    """Two runs of so many blocks at most that follow each other, call by call the same, in forward and backward."""
    ops = list(graph.ops)
    step, names = Dataflow(ops), repeated_blocks(ops)
    forth, back = (_starts(step.calls, names, phase) for phase in PHASES)
    for size in range(min(most, len(names) // 2), 0, -1):
        for first, second in zip(range(len(names)), range(size, len(names) - size + 1)):
            forward = _stretches(step.calls, forth[first], forth[second])
            backward = forward and _stretches(step.calls, back[second + size - 1], back[second - 1])
            if forward and backward:
                renamed = dict(zip(names[second : second + size], _unused(names)))
                return AdjacentBlocks(graph, step, forward, backward, renamed)
    raise ForetraceError(
        f"no two blocks of {graph.title} follow each other and call the same", "Its depth can't be set."
    )


def _unused(names: Sequence[str]) -> Iterator[str]:
    """Names for more of some blocks.

    >>> next(_unused(["GPT.blocks.0", "GPT.blocks.1"])), next(_unused(["ViT.layer_8", "ViT.layer_9"]))
    ('GPT.blocks.2', 'ViT.layer_10')
    """
    stem = names[0].rstrip(digits)
    return (f"{stem}{number}" for number in count(max(int(name.removeprefix(stem)) for name in names) + 1))


def _starts(calls: Sequence[Call], names: Sequence[str], phase: str) -> list[int | None]:
    """The place of each block's first call in a phase."""
    block = {module: block_index(module, names) for module in {call.op.module for call in calls}}
    found: dict[int, int] = {}
    for place, call in enumerate(calls):
        if call.op.phase == phase:
            found.setdefault(block[call.op.module], place)
    return [found.get(number) for number in range(len(names))]


def _stretches(calls: Sequence[Call], first: int | None, second: int | None) -> tuple[list[Call], list[Call]] | None:
    """The calls of two runs of blocks, where the second goes on with what the first made, and makes the same."""
    if first is None or second is None or second <= first:
        return None
    one, other = list(calls[first:second]), list(calls[second : 2 * second - first])
    passed = {slot for call in one for slot in call.made}
    meet = any(slot in passed for call in other for slot in call.reads)
    return (one, other) if meet and [*map(_kind, one)] == [*map(_kind, other)] else None


def _kind(call: Call) -> tuple[object, ...]:
    return (call.op.name, *(tensor.shape for tensor in call.made.values()))


# --- was transforms.repeated: Two runs of blocks of a model that follow each other: one more put between them, or the second left out.

Stretches = tuple[list[Call], list[Call]]
SECOND, OTHERS = 1, 0


class AdjacentBlocks:
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
        self, graph: Graph, step: Dataflow, forward: Stretches, backward: Stretches, names: dict[str, str]
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
        known = dict.fromkeys(StepInputs(step).weights, OTHERS)
        known.update(dict.fromkeys([*weights, *self._passed], SECOND))
        self._owners = WeightOwners(step, known, {call.row for part in (*forward, *backward) for call in part})
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
            id(self._forward[1][0]): [EditedCall(image.op(call), -1) for call in self._forward[1] if call.row >= 0],
            id(self._backward[1][0]): [
                EditedCall(image.op(call, self._linked(call, other)), -1)
                for call, other in zip(*self._backward)
                if call.row >= 0
            ],
        }
        if updates:
            between[id(updates[0])] = [EditedCall(image.op(call), -1) for call in updates]
        for row in (row for new in between.values() for row in new):
            row.op.module = self._renamed(row.op.module)
        rows: list[EditedCall] = []
        for call in self._step.calls:
            rows += between.get(id(call), [])
            if call.row >= 0:
                rows.append(EditedCall(self._met(call, image), call.row))
        recompute_frees(rows, self._ops, image.storages(self._step.inputs))
        return assemble(self._graph, rows)

    def _renamed(self, module: str) -> str:
        old = [*self._names]
        place = block_index(module, old)
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
        return [owner == SECOND for owner in self._owners.places(call)] if foreach_lists(call) else []

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
                rows.append(EditedCall(op, call.row))
        recompute_frees(rows, self._ops)
        seen, before = (storages_in(ops) for ops in ([row.op for row in rows], self._ops))
        kept = {number: storage for number, storage in self._graph.storages.items() if number not in before - seen}
        return assemble(replace(self._graph, storages=kept), rows)


class _Image:
    """What belongs to a run of blocks, once more under other numbers."""

    def __init__(self, ops: list[Op], step: Dataflow, own: set[int]) -> None:
        self._fresh = IdAllocator(ops)
        self._storage: dict[int, int] = {}
        self._old = dict(_slots(step))
        self.now: dict[int, Tensor] = {}
        theirs = {tensor.storage for slot, tensor in self._old.items() if slot not in own}
        for slot, tensor in self._old.items():
            if slot in own:
                self.now[slot] = self._again(tensor, theirs)

    def _again(self, tensor: Tensor, theirs: set[int]) -> Tensor:
        made = self._fresh.copy(tensor)
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


def _slots(step: Dataflow) -> Iterator[tuple[int, Tensor]]:
    yield from step.inputs.items()
    for call in step.calls:
        yield from call.made.items()


def _with(call: Call, read: Callable[[int, Tensor], Tensor], make: Callable[[int, Tensor], Tensor]) -> Op:
    given, made = iter(call.op.tensors), iter(call.op.produced)
    op = call.op.__copy__()
    op.args = tuple(substitute(list(call.args), lambda slot: read(slot, next(given))))
    op.kwargs = substitute(call.kwargs, lambda slot: read(slot, next(given)))
    op.outputs = tuple(substitute(list(call.results), lambda slot: make(slot, next(made))))
    return op


def _over_lists(old: Op, new: Op, change: Callable[[Any, Any], Any]) -> Op:
    op = old.__copy__()
    op.args = tuple(map(change, old.args, new.args))
    op.kwargs = {name: change(value, new.kwargs[name]) for name, value in old.kwargs.items()}
    op.outputs = tuple(map(change, old.outputs, new.outputs))
    return op


def _is_list(value: Any, count: int) -> bool:
    return is_sequence(value) and len(value) == count
