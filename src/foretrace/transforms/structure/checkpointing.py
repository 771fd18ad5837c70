"""Activation checkpointing: blocks keep only their inputs, and are recomputed in backward."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, Tensor
from foretrace.graph.operators import GEMMS
from foretrace.transforms.blocks import all_repeated_blocks, block_index, is_named
from foretrace.transforms.dataflow import Dataflow, SlotCall, rebuild
from foretrace.transforms.parallel.schedules import accumulation_rounds
from foretrace.transforms.step import EditedCall, UnusedIds, assemble, editable_step
from foretrace.transforms.structure.kept_results import BETWEEN, last_needed, named_calls

SELECTIVE = "selective"
SHARE = re.compile(r"(\d{1,4})/(\d{1,4})")
NUMBERS = re.compile(r"(\d{1,4})-(\d{1,4})")
ATTENTION = "_attention"
CAST = "aten::_to_copy"


def checkpointing(graph: Graph, blocks: str = "*") -> Graph:
    """The step with the activations of its repeated blocks recomputed in backward.

    As non-reentrant ``torch.utils.checkpoint`` does: a block is recomputed right before its backward first reads one of
    its activations, up to the last one that backward reads. ``blocks`` is a pattern of their modules, ``"*.blocks.*"``,
    or the end of a name, ``"blocks.3"``; a share of them, evenly spread, ``"1/2"``; some by their numbers, ``"0-11"``;
    or ``"selective"``: all of them, with the results of attention and of every second GEMM kept, as torchtitan's
    ``selective_ac_option = "op"`` does. After a colon come results that each block keeps, by their calls:
    ``"0-11:mm.0+mm.2"`` keeps those of the first and the third ``aten::mm`` of each block's forward.
    """
    graph, ops = editable_step(graph)
    selective = blocks == SELECTIVE
    wanted, _, names = ("*", "", "") if selective else blocks.partition(":")
    recomputation = _Recomputation(Dataflow(ops), ops, SELECTIVE if selective else names)
    selected = _selected_blocks(graph, ops, wanted)
    rounds = accumulation_rounds(ops, all_repeated_blocks(ops))
    recomputed = [block for block in selected if sum(recomputation.add(block, rows) for rows in rounds)]
    if not recomputed and not names:
        which = selected[0] if len(selected) == 1 else f"{selected[0]} to {selected[-1]}"
        raise ForetraceError(
            f"nothing can be recomputed in {which}: backward reads no result of its forward but what is kept anyway",
            "Blocks of one layer keep only their input, and those that the script checkpoints are recomputed already.",
        )
    made = recomputation.graph(graph)
    which = "" if len(recomputed) == len(selected) else f"{len(recomputed)} of {len(selected)} "
    kept = ", attention and every second GEMM excepted" if selective else f", {names} excepted" if names else ""
    made.notes.append(f"activations of {which}repeated blocks are recomputed in backward{kept}")
    return made


def _selected_blocks(graph: Graph, ops: list[Op], wanted: str) -> list[str]:
    found = all_repeated_blocks(ops)
    if not found:
        raise ForetraceError(f"{graph.title} has no repeated blocks", "Record it, or sketch it.")
    if share := SHARE.fullmatch(wanted):
        some, of = int(share[1]), int(share[2])
        if not 0 < some <= of:
            raise ForetraceError(f"checkpoint={wanted} is no share of the blocks", "Write it as 1/2.")
        return [block for n, block in enumerate(found) if n * some // of < (n + 1) * some // of]
    if numbers := NUMBERS.fullmatch(wanted):
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last < len(found):
            raise ForetraceError(f"{graph.title} has no blocks {wanted}", f"It has {len(found)}: 0-{len(found) - 1}.")
        return found[first : last + 1]
    selected = [block for block in found if is_named(block, wanted)]
    if not selected:
        raise unknown_name("block", wanted, found)
    return selected


def _kept(block: str, forward: list[SlotCall], keeps: str) -> list[SlotCall]:
    """Calls whose results are kept: named ones, or as selective checkpointing, attention and every second GEMM."""
    if not keeps:
        return []
    if keeps != SELECTIVE:
        calls = dict(named_calls(forward))
        if missing := next((name for name in keeps.split(BETWEEN) if name not in calls), None):
            raise unknown_name(f"call in {block}", missing, calls)
        return [calls[name] for name in keeps.split(BETWEEN)]
    gemms = [call for call in forward if call.op.name in GEMMS]
    return [*gemms[::2], *(call for call in forward if ATTENTION in call.op.name)]


class _Recomputation:
    """The calls of a step, with some made again in backward."""

    def __init__(self, step: Dataflow, ops: list[Op], keeps: str = "") -> None:
        self._keeps = keeps
        self._calls = [call for call in step.calls if call.row >= 0]
        self._ops = ops
        self._ids = UnusedIds(ops)
        self._allocated: list[int] = []
        """Storages that recomputed calls allocate."""
        self._inserted: dict[int, list[Op]] = {}
        """New calls, by the row before which they come."""
        self._changed: dict[int, Op] = {}
        self._held: dict[int, int] = {}
        """Storages of results that are kept, and the row until which they are."""
        freed = {storage for op in ops for storage in op.frees}
        self._freed = freed
        self._cached = {
            tensor.storage
            for call in self._calls
            if call.op.name == CAST and call.op.phase == "forward" and not step.inputs.keys().isdisjoint(call.reads)
            for tensor in call.made.values()
            if tensor.storage not in freed
        }
        """Copies of weights that autocast's cache holds to the end of the step."""
        self._clears_cache: set[int] = set()
        """Recomputed casts before which that cache is empty, by identity: the first one of each block."""

    def add(self, block: str, rows: range) -> bool:
        """Recompute a block where its backward begins to need it, in some rows; whether anything is recomputed."""
        inside = [call for call in self._calls if call.row in rows and block_index(call.op.module, [block]) == 0]
        forward, backward = ([call for call in inside if call.op.phase == phase] for phase in ("forward", "backward"))
        last = last_needed(forward, backward)
        kept = {slot: t for call in _kept(block, forward, self._keeps) for slot, t in call.made.items()}
        forward = [call for call in forward[: last + 1] if kept.keys().isdisjoint(call.made)]
        made = {slot for call in forward for slot in call.made}
        needed = {slot for call in backward for slot in call.reads if slot in made}
        if not needed:
            return False
        first = next(call for call in backward if needed.intersection(call.reads))
        self._held |= {tensor.storage: first.row for tensor in kept.values()}
        new: dict[int, Tensor] = {}
        storages: dict[int, int] = {}
        allocated = {tensor.storage for call in forward for tensor in call.made.values()} - {
            tensor.storage for call in forward for slot, tensor in zip(call.reads, call.op.tensors) if slot not in made
        }
        again = [self._recomputed(call, new, storages, allocated, first.op) for call in forward]
        self._inserted.setdefault(first.row, []).extend(again)
        copies = {storages[storage] for storage in self._cached & storages.keys()}
        casts = (op for op in again if any(tensor.storage in copies for tensor in op.produced))
        self._clears_cache |= {id(op) for op in islice(casts, 1)}
        self._cached |= copies
        for call in backward:
            if not new.keys().isdisjoint(call.reads):
                new |= {  # views of what was recomputed
                    slot: replace(tensor, storage=storages[tensor.storage])
                    for slot, tensor in call.made.items()
                    if tensor.storage in storages
                }
                self._changed[call.row] = rebuild(call, new.get, new.get, op=self._changed.get(call.row))
        return True

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
        ends = {storage: place for place, call in enumerate(calls) for storage in call.op.frees}
        read_again = {storage for storage, place in ends.items() if last.get(storage, -1) >= place}
        early = no_longer_read & self._freed | read_again
        places = {call.origin: number for number, call in enumerate(calls)}
        for storage in self._held.keys() & self._freed:
            last[storage] = max(last[storage], places[self._held[storage]])
            early.add(storage)
        last |= self._last_cached(calls, last)
        for call in calls:
            call.op.frees = tuple(storage for storage in call.op.frees if storage not in early)
        for storage in (*sorted(early), *self._allocated, *sorted(self._cached.difference(self._allocated))):
            if last[storage] + 1 < len(calls):
                calls[last[storage] + 1].op.frees += (storage,)
        return assemble(graph, calls)

    def _last_cached(self, calls: list[EditedCall], last: dict[int, int]) -> dict[int, int]:
        """The last use of copies that autocast caches: leaving the context of a recomputed block empties the cache,
        which then fills anew.
        """
        until, alive = dict.fromkeys(self._cached, len(calls)), set[int]()
        for place, call in enumerate(calls):
            if id(call.op) in self._clears_cache:
                until |= {storage: max(last[storage], place - 1) for storage in alive}
                alive.clear()
            alive |= {tensor.storage for tensor in call.op.produced if tensor.storage in self._cached}
        return until
