"""Fully sharded data parallel: each rank holds a shard of every weight, as FSDP2's ``fully_shard`` does.

The model is divided into units: its repeated blocks, and everything else (the root). A unit's weights are gathered
before it runs, in forward and again in backward, and freed after it; its gradients are reduced and scattered after its
backward. In backward the next unit is prefetched while one runs; in forward the host runs ahead, with the same effect.

In pipeline stages weights stay gathered (``reshard_after_forward=False``): each unit is gathered once, before it first
runs, and gradients are scattered unit by unit when the last microbatch is done, as `torch.distributed.pipelining` does.

In mixed precision (`MixedPrecisionPolicy`) the shards are float32: they are cast before they are gathered, and
gradients are reduced in float32.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.graph.op import HALF_DTYPES, RESIZE, contiguous_strides, with_tensors
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.draft import Draft, ProcessGroup, allocation, call_like
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import FULL, Gradient, Weights, weights_of

COMPUTE, COPY_IN, GATHER, SCATTER = range(4)
"""FSDP2's streams."""


def shard_weights(
    draft: Draft,
    calls: Sequence[EditedCall],
    group: ProcessGroup,
    units: Sequence[str] | None = None,
    mixed: bool = False,
    chunks: int = 0,
    excluded: Collection[int] = (),
) -> list[EditedCall]:
    """The calls of a step with its weights sharded over a group.

    ``units`` are modules whose weights are gathered together, the repeated blocks if None. For a pipeline stage,
    ``chunks`` says how many groups of blocks it has, each of which stays gathered until its backward is done; else it
    is 0. ``excluded`` are storages of weights, gradients and optimizer states that this group does not shard.
    """
    ops = [call.op for call in calls]
    found = weights_to_shard(ops, draft.graph.source, mixed, excluded)
    if not found.weights:
        return list(calls)
    divided = find_units(ops, found, unit_modules(ops, units))
    return _ShardedStep(draft, ops, group, found, divided, mixed, chunks, excluded).calls(calls)


def weights_to_shard(ops: Sequence[Op], source: str, mixed: bool, excluded: Collection[int]) -> Weights:
    """The weights of a step that a group shards: all but the excluded ones, in half precision where it is mixed."""
    found = weights_of(ops, source).without(excluded)
    if mixed:
        require_half(found, source)
    return found


def require_half(found: Weights, source: str) -> None:
    """Raise for weights that are not in half precision."""
    full = next((weight for weight in found.weights.values() if weight.dtype not in HALF_DTYPES), None)
    if full is not None:
        raise ForetraceError(
            f"mixed needs a step in half precision, and {source or 'the graph'} has a weight in "
            f"{full.dtype} in {found.modules[full.storage][0] or 'its forward'}",
            "Sketch the step with model.bfloat16() and no autocast, or leave out mixed.",
        )


def unit_modules(ops: Sequence[Op], units: Sequence[str] | None) -> list[str]:
    """The modules that are gathered together: the named ones, which must exist, or the repeated blocks."""
    if units is None:
        return repeated_blocks(ops)
    modules = {op.module for op in ops}
    for unit in units:
        if not any(block_index(module, [unit]) == 0 for module in modules):
            known = ", ".join(sorted({m for m in modules if m})[:5]) or "none, since the graph has no modules"
            raise ForetraceError(f"there is no module {unit!r}", f"There are, for instance: {known}.")
    return list(units)


@dataclass
class Unit:
    """Weights that are gathered together."""

    name: str
    weights: list[Tensor] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    forward: tuple[int, int] = (-1, -1)
    """Its first and last row."""
    backward: tuple[int, int] = (-1, -1)


def find_units(ops: Sequence[Op], found: Weights, blocks: Sequence[str]) -> list[Unit]:
    """The units in the order of forward; the first is the root, with everything that is in no block."""
    root, *rest = units = [Unit(""), *(Unit(block) for block in blocks)]
    for storage, weight in found.weights.items():
        at = {block_index(module, blocks) for module in found.modules[storage]}
        (units[at.pop() + 1] if len(at) == 1 else root).weights.append(weight)
    for gradient in found.in_model_order:
        units[block_index(gradient.module, blocks) + 1].gradients.append(gradient)
    block_of = {module: block_index(module, blocks) for module in {op.module for op in ops}}
    for phase in ("forward", "backward"):
        all_rows = [row for row, op in enumerate(ops) if op.phase == phase]
        spans: dict[int, tuple[int, int]] = {}
        for row in all_rows:
            block = block_of[ops[row].module]
            spans[block] = spans.get(block, (row, row))[0], row
        for number, unit in enumerate(rest):
            if number in spans:
                first, last = spans[number]
                setattr(unit, phase, (first, _with_accumulation(ops, last) if phase == "backward" else last))
        inside = [row for row in all_rows if ops[row].module] or all_rows  # traces may lack modules
        setattr(root, phase, (inside[0], inside[-1]))
    root.backward = root.backward[0], max(row for row, op in enumerate(ops) if op.phase == "backward")
    return [unit for unit in units if unit.weights]


def shard_of(tensor: Tensor, ranks: int) -> Tensor:
    """The first rank's shard, along the first dimension.

    >>> shard_of(Tensor((10, 4), "float32"), 4).shape
    (3, 4)
    """
    shape = (-(-tensor.shape[0] // ranks), *tensor.shape[1:]) if tensor.shape else tensor.shape
    return replace(tensor, shape=shape, stride=contiguous_strides(shape))


def _with_accumulation(ops: Sequence[Op], row: int) -> int:
    """The last of the AccumulateGrad calls right after a row."""
    while row + 1 < len(ops) and ops[row + 1].node.endswith("AccumulateGrad"):
        row += 1
    return row


class _ShardedStep:
    """Inserts FSDP2's calls around the units of a step."""

    def __init__(
        self,
        draft: Draft,
        ops: Sequence[Op],
        group: ProcessGroup,
        found: Weights,
        units: list[Unit],
        mixed: bool,
        chunks: int,
        excluded: Collection[int],
    ) -> None:
        self.draft, self.ops, self.group, self.units, self.mixed = draft, ops, group, units, mixed
        self.chunks, self.excluded = chunks, excluded
        self.before: dict[int, list[EditedCall]] = {}
        self.after: dict[int, list[EditedCall]] = {}
        self.unsharded: dict[int, int] = {}
        """Storage of each weight while it is gathered, by its own."""
        self.gathered: dict[str, tuple[Tensor, EditedCall]] = {}
        """The buffer and the all_gather of each unit."""
        self.shards = {storage: self._shard(weight) for storage, weight in found.weights.items()}
        self.scattered: dict[int, Tensor] = {}
        """This rank's shard of each gradient, by the storage of the whole."""
        self.copied_out: EditedCall | None = None
        """The event after the previous unit was copied out."""
        self.scattering: tuple[Tensor, EditedCall] | None = None
        """The buffer whose gradients were scattered last, and the event after that."""
        self.spans: list[tuple[range, dict[int, int]]] = []
        """Rows in which a unit is gathered, with its storages."""
        self.gathered_from: list[tuple[int, dict[int, int]]] = []
        """The storages of all units that are gathered from a row to the next of these."""
        self.frees: dict[int, list[int]] = {}
        self.gradients = found.storages

    def calls(self, calls: Sequence[EditedCall]) -> list[EditedCall]:
        """All calls of the sharded step."""
        if self.units[0].name:
            rows = [row for row, op in enumerate(self.ops) if op.phase == "backward"]
            self.units.insert(0, Unit("", forward=(0, 0), backward=(rows[0], rows[-1])))
        root, *blocks = self.units
        self._forward(root, blocks)
        self._backward(root, blocks)
        for row in sorted({0}.union(*((span.start, span.stop) for span, _ in self.spans))):
            # Accumulated gradients: forward spans reach into those of backward, and come first.
            here = [known for span, known in reversed(self.spans) if row in span]
            self.gathered_from.append((row, {mine: whole for known in here for mine, whole in known.items()}))
        changed = [replace(call, op=self._changed(row, call.op)) for row, call in enumerate(calls)]
        return [
            one
            for row, call in enumerate(changed)
            for one in (*self.before.get(row, ()), call, *self.after.get(row, ()))
        ]

    def _forward(self, root: Unit, blocks: list[Unit]) -> None:
        start, first = root.forward[0], self.ops[root.forward[0]]
        # The optimizer's update must be complete before weights are gathered.
        for stream in (COPY_IN, GATHER):
            self.before.setdefault(start, []).extend(self.draft.wait_stream(stream, COMPUTE, first))
        for unit in (root, *blocks):
            row = unit.forward[0]
            if unit.weights:
                self.before.setdefault(row, []).extend([*self._gather(unit, row), *self._copy_out(unit, row)])
            if unit is not root:
                last = unit.backward[1] if self.chunks else unit.forward[1]
                self.spans.append((range(unit.forward[0], last + 1), self._storages(unit)))
                if not self.chunks:
                    self.frees.setdefault(last + 1, []).extend(self._storages(unit).values())
        if root.weights:
            self.spans.append((range(root.forward[0], root.backward[1] + 1), self._storages(root)))

    def _backward(self, root: Unit, blocks: list[Unit]) -> None:
        order = sorted(blocks, key=lambda unit: unit.backward[0])
        units = [root, *order]
        for place, unit in enumerate(() if self.chunks else units):
            row = unit.backward[0]
            before = self.before.setdefault(row, [])
            if unit is not root:
                before += self._copy_out(unit, row)
            if place + 1 < len(units):
                before += self._gather(units[place + 1], row)
            if unit is not root:
                self.spans.append((range(unit.backward[0], unit.backward[1] + 1), self._storages(unit)))
        for unit, row in self._scatter_order(root, order):
            if unit.gradients:
                self.after.setdefault(row, []).extend(self._scatter(unit, row))
            elif unit.weights:
                self.frees.setdefault(row + 1, []).extend(self._storages(unit).values())
        if self.scattering:
            last, scattered = root.backward[1], self.scattering[1]
            self.after.setdefault(last, []).append(self.draft.wait_event(COMPUTE, scattered, self.ops[last]))
            self.frees.setdefault(last + 1, []).append(self.scattering[0].storage)

    def _scatter_order(self, root: Unit, order: list[Unit]) -> list[tuple[Unit, int]]:
        """The units, and the row after which the gradients of each are scattered.

        In a pipeline stage it is the last row of the unit's chunk; the units of one come in the order of forward.
        """
        if not self.chunks:
            return [(unit, unit.backward[1]) for unit in (*order, root)]
        blocks = sorted(order, key=lambda unit: unit.forward[0])
        each = max(1, -(-len(blocks) // self.chunks))
        found = [(unit, root.backward[1]) for unit in (root, *blocks[:each])]
        for start in range(each, len(blocks), each):  # backward is done with later chunks first
            chunk = blocks[start : start + each]
            row = max(unit.backward[1] for unit in chunk)
            found = [*((unit, row) for unit in chunk), *found]
        return found

    def _shard(self, weight: Tensor) -> Tensor:
        """This rank's shard, along the first dimension."""
        dtype = FULL if self.mixed and weight.dtype in HALF_DTYPES else weight.dtype
        return replace(shard_of(weight, self.group.size), dtype=dtype)

    def _gather(self, unit: Unit, row: int) -> list[EditedCall]:
        """Copy the shards into a buffer and gather those of all ranks, on streams of their own."""
        like = replace(self.ops[row], module=unit.name or self.ops[row].module)
        shards = [self.shards[w.storage] for w in unit.weights]
        first = unit.weights[0]
        each = sum(s.numel for s in shards)
        buffer = self.draft.tensor((each * self.group.size,), first.dtype, first.device)
        own = self.draft.view(buffer, (each,), 0)
        flat = [replace(s, shape=(s.numel,), stride=(1,)) for s in shards]
        copying = replace(like, stream=COPY_IN)
        cast, flat = self._cast(flat, first.dtype, copying) if self.mixed else ([], flat)
        sizes: list[object] = [s.numel for s in shards]
        copy = call_like("fsdp::all_gather_copy_in", (flat, buffer, sizes, each, 0), (own, buffer), copying)
        gather = self.draft.collective("all_gather", self.group, buffer, own, replace(like, stream=GATHER))
        if cast:
            gather = replace(gather, op=replace(gather.op, frees=(*gather.op.frees, flat[0].storage)))
        self.gathered[unit.name] = (buffer, gather)
        wait = self.draft.wait_stream(GATHER, COPY_IN, like)
        return [*cast, EditedCall(allocation(buffer, like)), EditedCall(copy), *wait, gather]

    def _cast(self, flat: list[Tensor], dtype: str, like: Op) -> tuple[list[EditedCall], list[Tensor]]:
        """Shards in the dtype that they are gathered in, in one buffer."""
        sizes = [shard.numel for shard in flat]
        buffer = self.draft.tensor((sum(sizes),), dtype, flat[0].device)
        parts = [self.draft.view(buffer, (size,), sum(sizes[:place])) for place, size in enumerate(sizes)]
        calls = [
            EditedCall(allocation(buffer, like)),
            EditedCall(call_like("aten::split_with_sizes", (buffer, sizes), (parts,), like)),
            EditedCall(call_like("aten::_foreach_copy_", (parts, flat), (None,), like)),
        ]
        return calls, parts

    def _copy_out(self, unit: Unit, row: int) -> list[EditedCall]:
        """Wait for a gathered unit, and copy it out into its weights."""
        like = replace(self.ops[row], module=unit.name or self.ops[row].module)
        buffer, gather = self.gathered[unit.name]
        self.unsharded |= {w.storage: self.draft.copy(w).storage for w in unit.weights}
        ranks, parts = self.group.size, [self.shards[w.storage].numel for w in unit.weights]
        outs = []
        resizes = [
            EditedCall(call_like(RESIZE, (w.storage, self.unsharded[w.storage], w.nbytes), (), like))
            for w in unit.weights
        ]
        view = self.draft.view(buffer, (ranks, sum(parts)))
        views = [EditedCall(call_like("aten::view", (buffer, [ranks, -1]), (view,), like))]
        for weight, part in zip(unit.weights, parts):
            whole = replace(weight, storage=self.unsharded[weight.storage])
            out = self.draft.view(whole, (ranks, part))
            outs.append(out)
            views.append(EditedCall(call_like("aten::view", (whole, [ranks, -1]), (out,), like)))
        sizes: list[object] = list(parts)
        copy = call_like("fsdp::split_with_sizes_copy", (view, sizes, 1), (None,), like, out=outs)
        self.frees.setdefault(row, []).append(buffer.storage)
        # At most one gathered unit waits to be copied out: its buffer is reused.
        previous = self.copied_out
        waits = [self.draft.wait_event(stream, previous, like) for stream in (COPY_IN, GATHER)] if previous else []
        self.copied_out = self.draft.record_event(COMPUTE, like)
        return [self.draft.wait_for(gather, like), *waits, *resizes, *views, EditedCall(copy), self.copied_out]

    def _storages(self, unit: Unit) -> dict[int, int]:
        return {w.storage: self.unsharded[w.storage] for w in unit.weights}

    def _scatter(self, unit: Unit, row: int) -> list[EditedCall]:
        """Free a unit's weights, reduce its gradients over all ranks, and keep a shard of them.

        The buffer of the unit before it is freed now: its gradients have to be scattered.
        """
        like = replace(self.ops[row], module=unit.name, node="RegisterPostBackwardFunctionBackward")
        ranks, device = self.group.size, unit.gradients[0].tensor.device
        shards = [self._shard(g.tensor) for g in unit.gradients]
        each = sum(s.numel for s in shards)
        buffer = self.draft.tensor((each * ranks,), shards[0].dtype, device)
        by_rank = self.draft.view(buffer, (ranks, each))
        own = self.draft.tensor((each,), shards[0].dtype, device)
        gradients: list[object] = [g.tensor for g in unit.gradients]
        on_stream = replace(like, stream=SCATTER)
        unused = tuple(self._storages(unit).values())
        waits = []
        if self.scattering:
            unused += (self.scattering[0].storage,)
            waits = [self.draft.wait_event(COMPUTE, self.scattering[1], like)]
        scatter = self.draft.collective("reduce_scatter", self.group, own, buffer, on_stream)
        self.scattering = buffer, self.draft.record_event(SCATTER, like)
        calls = [
            *waits,
            EditedCall(replace(allocation(buffer, like), frees=unused)),
            EditedCall(call_like("aten::view", (buffer, [ranks, -1]), (by_rank,), like)),
            EditedCall(call_like("fsdp::chunk_cat", (gradients, 0, ranks), (None,), like, out=by_rank)),
            *self.draft.wait_stream(SCATTER, COMPUTE, like),
            EditedCall(replace(allocation(own, on_stream), frees=tuple(g.tensor.storage for g in unit.gradients))),
            scatter,
            self.scattering[1],
        ]
        offset = 0
        for gradient, shard in zip(unit.gradients, shards):
            part = self.draft.view(own, shard.shape, offset)
            self.scattered[gradient.tensor.storage] = part
            args = (own, list(part.shape), list(part.stride or ()), offset)
            calls.append(EditedCall(call_like("aten::as_strided", args, (part,), on_stream)))
            offset += shard.numel
        return calls

    def _changed(self, row: int, op: Op) -> Op:
        """A call on gathered weights where its unit is gathered, and on shards after backward and in the optimizer."""
        frees = tuple(s for s in op.frees if s not in self.gradients) + tuple(self.frees.get(row, ()))
        op = op.__copy__()
        op.frees = frees
        if op.phase == "optimizer":
            return with_tensors(op, self._in_optimizer) if not op.name.startswith("c10d::") else op
        if row > self.units[0].backward[1]:  # gradients are clipped, or scaled back
            return with_tensors(op, lambda t: replace(self.scattered.get(t.storage, t), id=t.id))
        storages = self.gathered_from[max(bisect_right(self.gathered_from, row, key=itemgetter(0)) - 1, 0)][1]
        if storages and any(t.storage in storages for t in (*op.tensors, *op.produced)):
            return with_tensors(op, lambda t: replace(t, storage=storages.get(t.storage, t.storage)))
        return op

    def _in_optimizer(self, tensor: Tensor) -> Tensor:
        scattered = self.scattered.get(tensor.storage)
        if scattered is not None:
            return replace(scattered, id=tensor.id)
        return tensor if tensor.storage in self.excluded else self._shard(tensor)
