"""Activation checkpointing: blocks keep only their inputs, and are recomputed in backward."""

from __future__ import annotations

from dataclasses import replace

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor
from foretrace.transforms.blocks import all_repeated_blocks, block_index, is_named
from foretrace.transforms.dataflow import Dataflow, SlotCall, rebuild
from foretrace.transforms.step import EditedCall, UnusedIds, assemble, editable_step


def checkpointing(graph: Graph, blocks: str = "*") -> Graph:
    """The step with the activations of its repeated blocks recomputed in backward.

    As non-reentrant ``torch.utils.checkpoint`` does: a block is recomputed right before its backward first reads one of
    its activations, up to the last one that backward reads. ``blocks`` is a pattern of their modules, ``"*.blocks.*"``,
    or the end of a name, ``"blocks.3"``.
    """
    graph, ops = editable_step(graph)
    recomputation = _Recomputation(Dataflow(ops), ops)
    for block in _selected_blocks(graph, ops, blocks):
        recomputation.add(block)
    made = recomputation.graph(graph)
    made.notes.append("activations of repeated blocks are recomputed in backward")
    return made


def _selected_blocks(graph: Graph, ops: list[Op], wanted: str) -> list[str]:
    found = all_repeated_blocks(ops)
    if not found:
        raise ForetraceError(f"{graph.title} has no repeated blocks", "Record it, or sketch it.")
    selected = [block for block in found if is_named(block, wanted)]
    if not selected:
        raise unknown_name("block", wanted, found)
    return selected


class _Recomputation:
    """The calls of a step, with some made again in backward."""

    def __init__(self, step: Dataflow, ops: list[Op]) -> None:
        self._calls = [call for call in step.calls if call.row >= 0]
        self._ops = ops
        self._ids = UnusedIds(ops)
        self._allocated: list[int] = []
        """Storages that recomputed calls allocate."""
        self._inserted: dict[int, list[Op]] = {}
        """New calls, by the row before which they come."""
        self._changed: dict[int, Op] = {}

    def add(self, block: str) -> None:
        """Recompute a block where its backward begins to need it."""
        inside = [call for call in self._calls if block_index(call.op.module, [block]) == 0]
        forward, backward = ([call for call in inside if call.op.phase == phase] for phase in ("forward", "backward"))
        made = {slot for call in forward for slot in call.made}
        needed = {slot for call in backward for slot in call.reads if slot in made}
        if not needed:
            return
        last = max(place for place, call in enumerate(forward) if needed.intersection(call.made))
        first = next(call for call in backward if needed.intersection(call.reads))
        new: dict[int, Tensor] = {}
        storages: dict[int, int] = {}
        allocated = {tensor.storage for call in forward for tensor in call.made.values()} - {
            tensor.storage for call in forward for slot, tensor in zip(call.reads, call.op.tensors) if slot not in made
        }
        again = [self._recomputed(call, new, storages, allocated, first.op) for call in forward[: last + 1]]
        self._inserted.setdefault(first.row, []).extend(again)
        for call in backward:
            if not new.keys().isdisjoint(call.reads):
                self._changed[call.row] = rebuild(call, new.get, op=self._changed.get(call.row))

    def _recomputed(
        self, call: SlotCall, new: dict[int, Tensor], storages: dict[int, int], allocated: set[int], before: Op
    ) -> Op:
        """The call made again before another, with results under new ids."""
        for slot, tensor in call.made.items():
            storage = tensor.storage
            if storage in allocated and storage not in storages:
                storages[storage] = self._ids.storage_id()
                self._allocated.append(storages[storage])
            new[slot] = replace(tensor, id=self._ids.tensor_id(), storage=storages.get(storage, storage))
        op = rebuild(call, new.get, new.get)
        op.phase, op.node, op.thread, op.frees = "backward", before.node, before.thread, ()
        return op

    def graph(self, graph: Graph) -> Graph:
        """The step; storages of recomputed activations, old and new, are freed after their last use."""
        calls: list[EditedCall] = []
        for number, op in enumerate(self._ops):
            calls += [EditedCall(new) for new in self._inserted.get(number, ())]
            calls.append(EditedCall(self._changed.get(number, op).__copy__(), number))
        last = {t.storage: place for place, call in enumerate(calls) for t in (*call.op.tensors, *call.op.produced)}
        no_longer_read = {
            old.storage
            for row, op in self._changed.items()
            for old, new in zip(self._ops[row].tensors, op.tensors)
            if old.storage != new.storage
        }
        early = no_longer_read & {number for op in self._ops for number in op.frees}
        for call in calls:
            call.op.frees = tuple(storage for storage in call.op.frees if storage not in early)
        for storage in (*sorted(early), *self._allocated):
            if last[storage] + 1 < len(calls):
                calls[last[storage] + 1].op.frees += (storage,)
        return assemble(graph, calls)
