"""Activation checkpointing: blocks keep nothing but what they were given, and are computed again in backward."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.blocks import all_repeated_blocks, block_index
from foretrace.transforms.dataflow import Call, Dataflow, substitute
from foretrace.transforms.step import EditedCall, IdAllocator, assemble, editable_step


def checkpointing(graph: Graph, blocks: str = "*") -> Graph:
    """The step with the activations of its repeated blocks computed again in backward.

    Like ``torch.utils.checkpoint`` without reentrance: a block is computed again right before its backward first asks
    for something that it made, up to the last such thing.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    blocks
        Which ones: a pattern of their modules, ``"*.blocks.*"``, or how they end, ``"blocks.3"``.
    """
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    again = _Again(step, ops)
    for block in _blocks(graph, ops, blocks):
        again.compute(block)
    made = assemble(graph, again.rows())
    made.notes.append("activations of repeated blocks are computed again in backward")
    return made


def _blocks(graph: Graph, ops: list[Op], wanted: str) -> list[str]:
    found = all_repeated_blocks(ops)
    if not found:
        raise ForetraceError(f"{graph.title} shows no repeated blocks", "Record it, or sketch it.")
    meant = [block for block in found if fnmatchcase(block, wanted) or block.endswith(f".{wanted}")]
    if not meant:
        raise unknown_name("block", wanted, found)
    return meant


class _Again:
    """Calls with some of them made twice."""

    def __init__(self, step: Dataflow, ops: list[Op]) -> None:
        self._calls = [call for call in step.calls if call.row >= 0]
        self._ops = ops
        self._fresh = IdAllocator(ops)
        self._made: list[int] = []
        """Storages that the calls made again fill."""
        self._inserted: dict[int, list[Op]] = {}
        """New calls, by the row before which they come."""
        self._changed: dict[int, Op] = {}

    def compute(self, block: str) -> None:
        """Compute a block again where its backward begins to need it."""
        inside = [call for call in self._calls if block_index(call.op.module, [block]) == 0]
        forward, backward = ([call for call in inside if call.op.phase == phase] for phase in ("forward", "backward"))
        made = {slot for call in forward for slot in call.made}
        asked = {slot for call in backward for slot in call.reads if slot in made}
        if not asked:
            return
        last = max(place for place, call in enumerate(forward) if asked.intersection(call.made))
        first = next(call for call in backward if asked.intersection(call.reads))
        new: dict[int, Tensor] = {}
        storages: dict[int, int] = {}
        born = {tensor.storage for call in forward for tensor in call.made.values()} - {
            tensor.storage for call in forward for slot, tensor in zip(call.reads, call.op.tensors) if slot not in made
        }
        again = [self._copied(call, new, storages, born, first.op) for call in forward[: last + 1]]
        self._inserted.setdefault(first.row, []).extend(again)
        for call in backward:
            if not new.keys().isdisjoint(call.reads):
                self._changed[call.row] = _with(call, new, self._changed.get(call.row, call.op))

    def _copied(self, call: Call, new: dict[int, Tensor], storages: dict[int, int], born: set[int], beside: Op) -> Op:
        """The call once more, what it makes under numbers of its own."""
        for slot, tensor in call.made.items():
            storage = tensor.storage
            if storage in born and storage not in storages:
                storages[storage] = self._fresh.storage_id()
                self._made.append(storages[storage])
            new[slot] = replace(tensor, id=self._fresh.tensor_id(), storage=storages.get(storage, storage))
        op = _with(call, new, call.op)
        op.outputs = _outputs(call, new)
        op.phase, op.node, op.thread, op.frees = "backward", beside.node, beside.thread, ()
        return op

    def rows(self) -> list[EditedCall]:
        """All calls; what is made twice is freed, each time, once nobody reads it any more."""
        rows: list[EditedCall] = []
        for number, op in enumerate(self._ops):
            rows += [EditedCall(new, -1) for new in self._inserted.get(number, ())]
            rows.append(EditedCall(self._changed.get(number, op).__copy__(), number))
        last: dict[int, int] = {}
        for place, row in enumerate(rows):
            last.update(dict.fromkeys((t.storage for t in (*row.op.tensors, *row.op.produced)), place))
        ended = {number for op in self._ops for number in op.frees}
        early = self._halved() & ended
        freed: dict[int, list[int]] = {}
        for storage in (*sorted(early), *self._made):
            freed.setdefault(last[storage] + 1, []).append(storage)
        for place, row in enumerate(rows):
            kept = tuple(storage for storage in row.op.frees if storage not in early)
            row.op.frees = (*kept, *freed.get(place, ()))
        return rows

    def _halved(self) -> set[int]:
        """Storages whose readers in backward read a copy now."""
        return {
            old.storage
            for row, op in self._changed.items()
            for old, new in zip(self._ops[row].tensors, op.tensors)
            if old.storage != new.storage
        }


def _with(call: Call, new: dict[int, Tensor], op: Op) -> Op:
    """The op with other tensors in some of its slots."""
    given = iter(op.tensors)

    def now(slot: int) -> Tensor:
        old = next(given)
        return new.get(slot, old)

    changed = op.__copy__()
    changed.args = tuple(substitute(list(call.args), now))
    changed.kwargs = substitute(call.kwargs, now)
    return changed


def _outputs(call: Call, new: dict[int, Tensor]) -> tuple[Tensor, ...]:
    made = iter(call.op.produced)

    def now(slot: int) -> Tensor:
        old = next(made)
        return new.get(slot, old)

    return tuple(substitute(list(call.results), now))
