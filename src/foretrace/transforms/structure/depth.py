"""Depth: more or fewer of the blocks that a model repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from string import digits
from typing import Any, TypeAlias

from foretrace.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.dataflow import Dataflow, SlotCall, is_sequence, rebuild, with_elements
from foretrace.transforms.inputs import StepInputs, WeightOwners, foreach_lists
from foretrace.transforms.resize.resizable import check_size
from foretrace.transforms.step import EditedCall, UnusedIds, editable_step, reassemble

Runs: TypeAlias = tuple[list[SlotCall], list[SlotCall]]
"""The calls of two adjacent runs of blocks."""
MAX_BLOCKS = 1000
"""All their calls are created: more would exhaust the memory."""
SECOND, OTHERS = 1, 0
"""Owners of weights: the second run of blocks, or everything else."""


def depth(graph: Graph, blocks: int) -> Graph:
    """The step of a model with another number of blocks.

    Blocks are adjacent modules with equal calls whose names differ in a number. New ones are inserted between two of
    them, in forward and backward, with weights of their own, which the optimizer updates. For fewer blocks, some are
    removed and their neighbours connected.
    """
    check_size("depth", blocks)
    graph, ops = editable_step(graph)
    was = len(repeated_blocks(ops))
    if was < 2:
        raise ForetraceError(f"{graph.title} has no repeated blocks", "Record it, or sketch it: traces lack modules.")
    if blocks == 1:
        raise ForetraceError("depth can't be 1: blocks have to repeat", "The minimum is 2.")
    if blocks > MAX_BLOCKS:
        raise ForetraceError(f"depth can't be {blocks:,}", f"The maximum is {MAX_BLOCKS:,}.")
    left = blocks - was
    while left:
        pair = _adjacent_blocks(graph, abs(left))
        graph = pair.with_copy() if left > 0 else pair.without_second()
        left += -pair.blocks if left > 0 else pair.blocks
    if blocks != was:
        graph.notes.append(f"{blocks} blocks instead of {was}")
    return graph


def _adjacent_blocks(graph: Graph, most: int) -> AdjacentBlocks:
    """Two adjacent runs of at most so many blocks, with equal calls in forward and backward."""
    ops = list(graph.ops)
    step, names = Dataflow(ops), repeated_blocks(ops)
    forward_starts, backward_starts = (_starts(step.calls, names, phase) for phase in ("forward", "backward"))
    for size in range(min(most, len(names) // 2), 0, -1):
        for first, second in zip(range(len(names)), range(size, len(names) - size + 1)):
            forward = _equal_runs(step.calls, forward_starts[first], forward_starts[second])
            backward = forward and _equal_runs(
                step.calls, backward_starts[second + size - 1], backward_starts[second - 1]
            )
            if forward and backward:
                renamed = dict(zip(names[second : second + size], _unused(names)))
                return AdjacentBlocks(graph, step, forward, backward, renamed)
    raise ForetraceError(f"no two adjacent blocks of {graph.title} make the same calls", "Its depth can't be set.")


def _unused(names: Sequence[str]) -> Iterator[str]:
    """Names for new blocks."""
    stem = names[0].rstrip(digits)
    return (f"{stem}{number}" for number in count(max(int(name.removeprefix(stem)) for name in names) + 1))


def _starts(calls: Sequence[SlotCall], names: Sequence[str], phase: str) -> list[int | None]:
    """The position of each block's first call in a phase."""
    block = {module: block_index(module, names) for module in {call.op.module for call in calls}}
    found: dict[int, int] = {}
    for place, call in enumerate(calls):
        if call.op.phase == phase:
            found.setdefault(block[call.op.module], place)
    return [found.get(number) for number in range(len(names))]


def _equal_runs(calls: Sequence[SlotCall], first: int | None, second: int | None) -> Runs | None:
    """The calls of two runs of blocks, if the second reads what the first made and makes equal calls."""
    if first is None or second is None or second <= first:
        return None
    one, other = list(calls[first:second]), list(calls[second : 2 * second - first])
    made = {slot for call in one for slot in call.made}
    connected = any(slot in made for call in other for slot in call.reads)
    return (one, other) if connected and [*map(_kind, one)] == [*map(_kind, other)] else None


def _kind(call: SlotCall) -> tuple[object, ...]:
    return (call.op.name, *(tensor.shape for tensor in call.made.values()))


class AdjacentBlocks:
    """Two adjacent runs of equally many blocks, and what belongs to the second alone.

    ``forward`` has the calls of the first run and of the second, ``backward`` those of the second and of the first;
    ``names`` maps each module of the second to that of its copy.
    """

    def __init__(self, graph: Graph, step: Dataflow, forward: Runs, backward: Runs, names: dict[str, str]) -> None:
        self._graph, self._step, self._ops = graph, step, list(graph.ops)
        self._forward, self._backward, self._names = forward, backward, names
        self._counterpart = {a: b for one, two in zip(*forward) for a, b in zip(one.made, two.made)}
        """The forward result of the second run that corresponds to each of the first."""
        self._passed = {slot for call in backward[0] for slot in call.made}
        """What the second run makes in backward: the first run reads its gradient from it."""
        self._second = {id(call) for call in (*forward[1], *backward[0])}
        self._first_backward = {id(call) for call in backward[1]}
        made = {slot for call in forward[1] for slot in call.made} | self._passed
        weights = {  # inputs of the second run that differ from those of the first at the same position
            theirs
            for one, two in zip(*forward)
            for ours, theirs in zip(one.reads, two.reads)
            if ours != theirs and theirs in step.inputs
        }
        known = dict.fromkeys(StepInputs(step).weights, OTHERS)
        known.update(dict.fromkeys([*weights, *self._passed], SECOND))
        self._owners = WeightOwners(step, known, {call.row for part in (*forward, *backward) for call in part})
        self._own = made | weights | self._owners.slots(SECOND)

    @property
    def blocks(self) -> int:
        """Number of blocks in a run."""
        return len(self._names)

    def with_copy(self) -> Graph:
        """The step with a copy of the second run between the two."""
        copy = _Copy(self._ops, self._step, self._own)
        updates = [call for call in self._step.calls if self._owners.of_row.get(call.row) == SECOND]
        between = {
            id(self._forward[1][0]): [EditedCall(copy.op(call)) for call in self._forward[1] if call.row >= 0],
            id(self._backward[1][0]): [
                EditedCall(copy.op(call, self._linked(call, other)))
                for call, other in zip(*self._backward)
                if call.row >= 0
            ],
        }
        if updates:
            between[id(updates[0])] = [EditedCall(copy.op(call)) for call in updates]
        for new in (new for some in between.values() for new in some):
            new.op.module = self._renamed(new.op.module)
        calls: list[EditedCall] = []
        for call in self._step.calls:
            calls += between.get(id(call), [])
            if call.row >= 0:
                calls.append(EditedCall(self._reconnected(call, copy), call.row))
        return reassemble(self._graph, self._ops, calls, copy.storages(self._step.inputs))

    def _renamed(self, module: str) -> str:
        old = [*self._names]
        place = block_index(module, old)
        return module if place < 0 else self._names[old[place]] + module.removeprefix(old[place])

    def _linked(self, call: SlotCall, other: SlotCall) -> dict[int, int]:
        """Positions at which the first run reads gradients of the second: the copy between them reads those now."""
        pairs = enumerate(zip(call.reads, other.reads))
        return {place: slot for place, (_, slot) in pairs if slot in self._passed}

    def _reconnected(self, call: SlotCall, copy: _Copy) -> Op:
        """A call that stays: what the two runs passed to each other comes from the copy between them."""
        if id(call) in self._second:
            return copy.reading(call, self._counterpart.get)
        if id(call) in self._first_backward:
            return copy.reading(call, lambda slot: slot if slot in self._passed else None)
        own = self._elements(call)
        return copy.extended(call, own) if any(own) else call.op.__copy__()

    def _elements(self, call: SlotCall) -> list[bool]:
        """For a foreach call, which list elements are the second run's."""
        return [owner == SECOND for owner in self._owners.of_elements(call)] if foreach_lists(call) else []

    def without_second(self) -> Graph:
        """The step without the second run."""
        tensors = self._step.tensors
        now = {counterpart: tensors[slot] for slot, counterpart in self._counterpart.items()}
        for one, two in zip(*self._backward):
            reads = zip(one.reads, two.reads)
            now.update((counterpart, tensors[slot]) for slot, counterpart in reads if counterpart in self._passed)
        gone = {call.row for call in (*self._forward[1], *self._backward[0])}
        gone |= {row for row, owner in self._owners.of_row.items() if owner == SECOND}
        calls = []
        for call in self._step.calls:
            if call.row >= 0 and call.row not in gone:
                others = [not own for own in self._elements(call)]
                op = rebuild(call, now.get) if all(others) else with_elements(call.op, others)
                calls.append(EditedCall(op, call.row))
        return reassemble(self._graph, self._ops, calls)


class _Copy:
    """A copy of what belongs to a run of blocks, under new ids."""

    def __init__(self, ops: list[Op], step: Dataflow, own: set[int]) -> None:
        self._ids = UnusedIds(ops)
        self._storage: dict[int, int] = {}
        self._old = step.tensors
        self.now: dict[int, Tensor] = {}
        shared = {tensor.storage for slot, tensor in self._old.items() if slot not in own}
        for slot, tensor in self._old.items():
            if slot in own:
                self.now[slot] = self._copied(tensor, shared)

    def _copied(self, tensor: Tensor, shared: set[int]) -> Tensor:
        made = self._ids.copy(tensor)
        if tensor.storage in shared or tensor.storage < 0:  # a view of what is not the run's own
            return replace(tensor, id=made.id)
        storage = self._storage.setdefault(tensor.storage, made.storage)
        return replace(tensor, id=made.id, storage=storage)

    def storages(self, inputs: dict[int, Tensor]) -> set[int]:
        """Storages of the copy that are allocated in the step."""
        given = {tensor.storage for tensor in inputs.values()}
        return {new for old, new in self._storage.items() if old not in given}

    def op(self, call: SlotCall, links: dict[int, int] | None = None) -> Op:
        """A call of the run for its copy; at linked positions it reads the original tensors of other slots."""
        places = iter(range(len(call.reads)))
        linked = links or {}

        def read(slot: int, old: Tensor) -> Tensor:
            place = next(places)
            return self._old[linked[place]] if place in linked else self.now.get(slot, old)

        return rebuild(call, read, self.now.get)

    def reading(self, call: SlotCall, other: Callable[[int], int | None]) -> Op:
        """A call that stays, reading the copies of other slots where there are any."""

        def read(slot: int, old: Tensor) -> Tensor:
            known = other(slot)
            return old if known is None else self.now.get(known, old)

        return rebuild(call, read)

    def extended(self, call: SlotCall, own: Sequence[bool]) -> Op:
        """A foreach call, with the copy's elements before those of the run."""
        copied = self.op(call)

        def both(old: Any, new: Any) -> Any:
            if not is_sequence(old) or len(old) != len(own):
                return old
            first = own.index(True)
            return [*old[:first], *(item for item, is_own in zip(new, own) if is_own), *old[first:]]

        op = call.op.__copy__()
        op.args, op.outputs = tuple(map(both, op.args, copied.args)), tuple(map(both, op.outputs, copied.outputs))
        op.kwargs = {name: both(value, copied.kwargs[name]) for name, value in op.kwargs.items()}
        return op
