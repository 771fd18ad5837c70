"""Sharded optimizer states, ZeRO-1: data parallel ranks update a shard of the weights each, as Megatron's distributed
optimizer does.

Each rank holds all weights, and all gradients in the type that they are added up in: every unit of the model has a
buffer of each, allocated once. After the last microbatch a unit's gradients are scaled and scattered within their
buffer, the optimizer updates this rank's shards, and before its next forward the unit's weights are gathered within
theirs. Nothing is copied, so that hardly any memory is reserved beside what is held.

In mixed precision the optimizer has float32 copies of this rank's shards, from which the weights are written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from foretrace.graph import Op, Tensor
from foretrace.graph.op import HALF_DTYPES, end_in_storage, with_tensors
from foretrace.transforms.draft import UPDATE, Draft, ProcessGroup, call_like
from foretrace.transforms.parallel.fsdp import COMPUTE, GATHER, SCATTER, Unit, find_units, shard_of, weights_to_shard
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import FULL, Weights


def shard_states(
    draft: Draft,
    calls: Sequence[EditedCall],
    group: ProcessGroup,
    units: Sequence[str],
    mixed: bool = False,
    excluded: Collection[int] = (),
) -> list[EditedCall]:
    """The calls of a step with its optimizer states sharded over a group.

    ``units`` are modules whose weights are gathered together. ``excluded`` are storages of weights, gradients and
    optimizer states that this group does not shard.
    """
    ops = [call.op for call in calls]
    found = weights_to_shard(ops, draft.graph.source, mixed, excluded)
    if not found.weights:
        return list(calls)
    return _ShardedStates(draft, ops, group, find_units(ops, found, units), mixed, excluded).calls(calls, found)


@dataclass
class _Buffer:
    """Weights or gradients of a unit, one after the other in one storage."""

    whole: Tensor
    own: Tensor
    """This rank's part of it."""


class _ShardedStates:
    """Moves weights and gradients of a step into buffers, and inserts what scatters and gathers these."""

    def __init__(
        self,
        draft: Draft,
        ops: Sequence[Op],
        group: ProcessGroup,
        units: Sequence[Unit],
        mixed: bool,
        excluded: Collection[int],
    ) -> None:
        self.draft, self.ops, self.group, self.units = draft, ops, group, units
        self.mixed, self.excluded = mixed, excluded
        self.half = next((w.dtype for unit in units for w in unit.weights), "")
        """The type that the step computes in."""
        self.places: dict[int, tuple[Tensor, int]] = {}
        """The buffer of each weight and gradient, by its storage, and where in it that storage begins."""
        self.shards: dict[tuple[int, int], Tensor] = {}
        """This rank's shards of weights and gradients, by the storage and offset of the whole."""
        self.updated: list[tuple[Tensor, Tensor]] = []
        """Shards of weights, and the float32 copies that the optimizer has of them."""
        self.buffers: set[int] = set()
        """Storages of the buffers."""
        self.before: dict[int, list[EditedCall]] = {}
        self.after: dict[int, list[EditedCall]] = {}

    def calls(self, calls: Sequence[EditedCall], found: Weights) -> list[EditedCall]:
        """All calls of the step with sharded states."""
        known = {one.tensor.storage for unit in self.units for one in unit.gradients}
        self.units[0].gradients += [one for one in found.in_model_order if one.tensor.storage not in known]
        ends = self._ends({*found.weights, *found.storages})
        weights = [self._buffers(unit.weights, ends) for unit in self.units]
        gradients = [self._buffers([one.tensor for one in unit.gradients], ends, True) for unit in self.units]
        first = min(unit.forward[0] for unit in self.units)
        for unit, buffers in sorted(zip(self.units, gradients), key=lambda one: (one[0].backward[1], not one[0].name)):
            row = unit.backward[1]
            self.before.setdefault(first, []).extend(self._on(b.whole, "aten::zero_", self.ops[first]) for b in buffers)
            self.after.setdefault(row, []).extend(self._scattered(buffers, replace(self.ops[row], module=unit.name)))
        if self.group.size > 1:
            self._gather(weights)
        if self.mixed:
            self._write_weights()
            self._return_placeholders()
        last = max(row for row, op in enumerate(self.ops) if op.phase == "backward")
        made: list[EditedCall] = []
        freed: tuple[int, ...] = ()
        for row, call in enumerate(calls):
            for one in (*self.before.get(row, ()), self._changed(call, row > last), *self.after.get(row, ())):
                one.op.frees = (*freed, *one.op.frees)
                freed = one.op.frees if self._allocates_buffer(one.op) else ()
                made += [] if self._allocates_buffer(one.op) else [one]
        return made

    def _ends(self, storages: Collection[int]) -> dict[int, int]:
        """Elements of some storages, as far as calls use them."""
        ends = dict.fromkeys(storages, 0)
        for op in self.ops:
            for tensor in (*op.tensors, *op.produced):
                if tensor.storage in ends:
                    ends[tensor.storage] = max(ends[tensor.storage], end_in_storage(tensor) // tensor.itemsize)
        return ends

    def _buffers(self, tensors: Sequence[Tensor], ends: dict[int, int], are_gradients: bool = False) -> list[_Buffer]:
        """Buffers for some tensors, one for each type, and this rank's shards of them."""
        by_type: dict[str, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        found = []
        for dtype, ours in by_type.items():
            storages = list(dict.fromkeys(tensor.storage for tensor in ours))
            shards = [shard_of(tensor, self.group.size) for tensor in ours]
            each = sum(shard.numel for shard in shards)
            numel = max(each * self.group.size, sum(ends[storage] for storage in storages))
            kept = FULL if are_gradients and self.mixed and dtype in HALF_DTYPES else dtype
            whole = self.draft.tensor((numel,), kept, ours[0].device)
            if not are_gradients:
                self.draft.held.add(whole.storage)
            self.buffers.add(whole.storage)
            found.append(_Buffer(whole, self.draft.view(whole, (numel // self.group.size,))))
            offset = 0
            for storage in storages:
                self.places[storage] = whole, offset
                offset += ends[storage]
            offset = 0
            for tensor, shard in zip(ours, shards):
                part = self.draft.view(whole, shard.shape, offset)
                offset += prod(shard.shape)
                if self.mixed and not are_gradients:
                    self.updated.append((part, replace(shard, dtype=FULL, offset=0)))
                    part = self.updated[-1][1]
                self.shards[tensor.storage, tensor.offset] = part
        return found

    def _on(self, tensor: Tensor, name: str, like: Op, *others: object) -> EditedCall:
        """A call that changes a tensor in place, outside of all modules."""
        call = call_like(name, (tensor, *others), (tensor,), like)
        call.module = call.node = ""
        return EditedCall(call)

    def _scattered(self, buffers: Sequence[_Buffer], like: Op) -> Iterator[EditedCall]:
        """Scale a unit's gradients, and scatter their sums over the ranks."""
        for buffer in buffers if self.group.size > 1 else ():
            yield self._on(buffer.whole, "aten::mul_", like, 1 / self.group.size)
            on_stream = replace(like, stream=SCATTER)
            yield from self.draft.wait_stream(SCATTER, COMPUTE, like)
            yield self.draft.collective("reduce_scatter", self.group, buffer.own, buffer.whole, on_stream)

    def _gather(self, weights: Sequence[Sequence[_Buffer]]) -> None:
        """Gather each unit's weights while the unit before it runs; the first ones before anything runs."""
        rows = [unit.forward[0] for unit in self.units]
        rows = [rows[0], *rows[:-1]]
        for row, unit, buffers in zip(rows, self.units, weights):
            like = replace(self.ops[row], module=unit.name)
            before = self.before.setdefault(row, [])
            for buffer in buffers:
                before += self.draft.wait_stream(GATHER, COMPUTE, like)
                on_stream = replace(like, stream=GATHER)
                before.append(self.draft.collective("all_gather", self.group, buffer.whole, buffer.own, on_stream))

    def _write_weights(self) -> None:
        """After the optimizer, the weights of this rank's shards are written from their float32 copies."""
        updates = [row for row, op in enumerate(self.ops) if op.phase == "optimizer" and op.name != UPDATE]
        if updates:
            parts, copies = ([*some] for some in zip(*self.updated))
            copy = call_like("aten::_foreach_copy_", (parts, copies), (None,), self.ops[updates[-1]])
            self.after.setdefault(updates[-1], []).append(EditedCall(copy))

    def _return_placeholders(self) -> None:
        """GEMMs that add to float32 gradients return none, but autograd wants one of the weight's type and shape.

        It is never read: TransformerEngine keeps an empty tensor for each shape (``get_dummy_wgrad``).
        """
        seen = set()
        for row, op in enumerate(self.ops):
            made = op.produced[0] if op.phase == "backward" and op.name == "aten::mm" else None
            if made is not None and made.storage in self.places and made.dtype == FULL and made.shape not in seen:
                seen.add(made.shape)
                empty = self.draft.tensor(made.shape, self.half, made.device)
                returned = call_like("aten::detach", (empty,), (self.draft.view(empty, made.shape),), op)
                self.after.setdefault(row, []).append(EditedCall(returned))

    def _changed(self, call: EditedCall, after_backward: bool) -> EditedCall:
        """A call on buffers, or in the optimizer on shards; gradients are clipped, or scaled back, in shards too."""
        op = call.op
        op = replace(op, frees=tuple(storage for storage in op.frees if storage not in self.places))
        in_optimizer = op.phase == "optimizer" and not op.name.startswith("c10d::")
        place = self._in_optimizer if in_optimizer else self._in_shard if after_backward else self._in_buffer
        return replace(call, op=with_tensors(op, place))

    def _allocates_buffer(self, op: Op) -> bool:
        """Whether a call allocates what a gradient is added up in: its buffer is there."""
        return op.name == "aten::empty" and op.produced[0].storage in self.buffers

    def _in_buffer(self, tensor: Tensor) -> Tensor:
        if tensor.storage not in self.places:
            return tensor
        whole, offset = self.places[tensor.storage]
        return replace(tensor, storage=whole.storage, offset=offset + tensor.offset)

    def _in_shard(self, tensor: Tensor) -> Tensor:
        shard = self.shards.get((tensor.storage, tensor.offset))
        return self._in_buffer(tensor) if shard is None else replace(shard, id=tensor.id)

    def _in_optimizer(self, tensor: Tensor) -> Tensor:
        if (tensor.storage, tensor.offset) in self.shards:
            return self._in_shard(tensor)
        if tensor.storage in self.excluded:
            return tensor
        dtype = FULL if self.mixed and tensor.dtype in HALF_DTYPES else tensor.dtype
        return replace(shard_of(tensor, self.group.size), dtype=dtype)
