"""Sharded data parallel: each rank keeps a part of every weight, as FSDP2's ``fully_shard`` does it.

The model is cut into units: its repeated blocks, and the rest. A unit's weights are gathered before it runs, in forward
and again in backward, and given back after it; its gradients are summed and scattered when its backward is done. In
backward the unit that comes next is gathered beside the one that runs; in forward the host runs ahead, with the same
effect.

Where weights stay gathered (``reshard_after_forward=False``, as stages of a pipeline have it), each unit is gathered
once, before it runs first, and its gradients are scattered once, after the last part of the batch.

In mixed precision (`MixedPrecisionPolicy`) the shards are float32: they are cast before they are gathered, and
gradients are summed in float32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from foretrace.graph import ForetraceError, Graph, Op, Tensor
from foretrace.graph.op import RESIZE, with_tensors
from foretrace.graph.tensor import contiguous_strides
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.draft import Draft, ProcessGroup, allocation, call_like, draft_of
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import Gradient, Weights, weights_of

COMPUTE, COPY_IN, GATHER, SCATTER = range(4)
"""FSDP2's streams."""
HALF, FULL = ("bfloat16", "float16"), "float32"


@dataclass
class Unit:
    """Weights that are gathered together."""

    name: str
    weights: list[Tensor] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    forward: tuple[int, int] = (-1, -1)
    """First and last row that belong to it."""
    backward: tuple[int, int] = (-1, -1)


def fully_sharded_data_parallel(
    graph: Graph, ways: int, units: Sequence[str] | None = None, mixed: bool = False
) -> Graph:
    """The step of one of so many ranks that share a model's weights, each with its own batch.

    Parameters
    ----------
    graph
        The step of one rank.
    ways
        How many ranks.
    units
        Names of the modules whose weights are gathered together; the repeated blocks where left out.
    mixed
        Whether shards, sums of gradients and the optimizer are float32, for a step in half precision.

    >>> from foretrace.graph import OpTable
    >>> weight, given, gradient = (Tensor((8, 8), "float32", "cuda:0", id=n, storage=n) for n in range(3))
    >>> step = [Op("aten::mm", (given, weight), phase="forward"),
    ...         Op("aten::mm", (given, given), outputs=(gradient,), phase="backward"),
    ...         Op("aten::add_", (weight, gradient), outputs=(weight,), phase="optimizer")]
    >>> [one.kind for one in fully_sharded_data_parallel(Graph(OpTable.of(step)), 4).collectives]
    ['all_gather', 'reduce_scatter']
    """
    draft = draft_of(graph, "sharded data parallel")
    group = ProcessGroup("sharded", tuple(range(ways)))
    note = f"weights in shards on {ways} ranks (FSDP2) were not in the step that was given"
    return draft.graph_of(shard_weights(draft, draft.calls, group, units, mixed), 0, ways, note)


def shard_weights(
    draft: Draft,
    calls: Sequence[EditedCall],
    group: ProcessGroup,
    units: Sequence[str] | None = None,
    mixed: bool = False,
    stays: bool = False,
    others: Collection[int] = (),
) -> list[EditedCall]:
    """The calls of a step with its weights in shards over a group.

    Parameters
    ----------
    draft, calls
        The step.
    group
        Who has a shard each.
    units, mixed
        As in `fully_sharded_data_parallel`.
    stays
        Whether a unit that was gathered stays so until its last backward.
    others
        Storages of weights, gradients and the optimizer's states that are in no shards of this group.
    """
    ops = [call.op for call in calls]
    found = weights_of(ops, draft.graph.source).without(others)
    if mixed:
        _check_half(found, draft.graph.source)
    cut = _units(ops, found, unit_modules(ops, units))
    return _Sharding(draft, ops, group, found, cut, mixed, stays, others).written(calls)


def _check_half(found: Weights, source: str) -> None:
    whole = next((weight for weight in found.weights.values() if weight.dtype not in HALF), None)
    if whole is not None:
        module = found.modules[whole.storage][0]
        raise ForetraceError(
            f"mixed precision starts from a step in half precision, and {source or 'the graph'} has a weight in "
            f"{whole.dtype} in {module or 'its forward'}",
            "Sketch the step with model.bfloat16() and no autocast, or leave out mixed.",
        )


def unit_modules(ops: Sequence[Op], units: Sequence[str] | None) -> list[str]:
    """The modules that are gathered together: those named, which there must be, or the repeated blocks.

    >>> unit_modules([Op("aten::mm", module="net.head")], ["net.head"])
    ['net.head']
    """
    if units is None:
        return repeated_blocks(ops)
    modules = {op.module for op in ops}
    for unit in units:
        if not any(block_index(module, [unit]) == 0 for module in modules):
            near = ", ".join(sorted({m for m in modules if m})[:5]) or "none, since the graph names no modules"
            raise ForetraceError(f"no module is called {unit!r}", f"There are, for instance: {near}.")
    return list(units)


def _units(ops: Sequence[Op], found: Weights, blocks: Sequence[str]) -> list[Unit]:
    """The units in the order of forward; the first is the root, which holds what is in no block."""
    root, *rest = units = [Unit(""), *(Unit(block) for block in blocks)]
    for storage, weight in found.weights.items():
        at = {block_index(module, blocks) for module in found.modules[storage]}
        (units[at.pop() + 1] if len(at) == 1 else root).weights.append(weight)
    for gradient in found.in_model_order:
        units[block_index(gradient.module, blocks) + 1].gradients.append(gradient)
    for phase in ("forward", "backward"):
        place = [block_index(op.module, blocks) if op.phase == phase else -1 for op in ops]
        for number, unit in enumerate(rest):
            rows = [row for row, at in enumerate(place) if at == number]
            if rows:
                setattr(unit, phase, (rows[0], _with_accumulation(ops, rows[-1]) if phase == "backward" else rows[-1]))
        all_rows = [row for row, op in enumerate(ops) if op.phase == phase]
        inside = [row for row in all_rows if ops[row].module] or all_rows  # traces may not name modules
        setattr(root, phase, (inside[0], inside[-1]))
    root.backward = root.backward[0], max(row for row, op in enumerate(ops) if op.phase == "backward")
    return [unit for unit in units if unit.weights]


def _with_accumulation(ops: Sequence[Op], row: int) -> int:
    """The last of the calls right behind one that hand its gradients over."""
    while row + 1 < len(ops) and ops[row + 1].node.endswith("AccumulateGrad"):
        row += 1
    return row


class _Sharding:
    """What FSDP2 calls around the units of a step."""

    def __init__(
        self,
        draft: Draft,
        ops: Sequence[Op],
        group: ProcessGroup,
        found: Weights,
        units: list[Unit],
        mixed: bool,
        stays: bool,
        others: Collection[int],
    ) -> None:
        self.draft, self.ops, self.group, self.units, self.mixed = draft, ops, group, units, mixed
        self.stays, self.others = stays, others
        self.before: dict[int, list[EditedCall]] = {}
        self.behind: dict[int, list[EditedCall]] = {}
        self.whole: dict[int, int] = {}
        """Storage of each weight while it is gathered, by its own."""
        self.gathered: dict[str, tuple[Tensor, EditedCall]] = {}
        self.shards = {storage: self._shard(weight) for storage, weight in found.weights.items()}
        self.scattered: dict[int, Tensor] = {}
        """A gradient's part of this rank, by the storage of the whole."""
        self.copied: EditedCall | None = None
        """The event that the unit before was copied out."""
        self.spans: list[tuple[range, dict[int, int]]] = []
        self.frees: dict[int, list[int]] = {}
        self.dying = found.storages

    def written(self, calls: Sequence[EditedCall]) -> list[EditedCall]:
        """The calls with all of it."""
        root = self.units[0] if not self.units[0].name else None
        if root is None:
            self.units.insert(0, root := Unit("", forward=(0, 0), backward=self._backward_span()))
        blocks = self.units[1:]
        self._forward(root, blocks)
        self._backward(root, blocks)
        changed = [replace(call, op=self._changed(row, call.op)) for row, call in enumerate(calls)]
        return [
            one
            for row, call in enumerate(changed)
            for one in (*self.before.get(row, ()), call, *self.behind.get(row, ()))
        ]

    def _backward_span(self) -> tuple[int, int]:
        rows = [row for row, op in enumerate(self.ops) if op.phase == "backward"]
        return rows[0], rows[-1]

    def _forward(self, root: Unit, blocks: list[Unit]) -> None:
        start, first = root.forward[0], self.ops[root.forward[0]]
        # What the optimizer changed must be there before it is gathered.
        for stream in (COPY_IN, GATHER):
            self.before.setdefault(start, []).extend(self.draft.wait_stream(stream, COMPUTE, first))
        for unit in (root, *blocks):
            row = unit.forward[0]
            if unit.weights:
                self.before.setdefault(row, []).extend([*self._gather(unit, row), *self._copy_out(unit, row)])
            if unit is not root:
                self._give_back(unit, (unit.forward[0], unit.backward[1]) if self.stays else unit.forward)
        if root.weights:
            self.spans.append((range(root.forward[0], root.backward[1] + 1), self._storages(root)))

    def _backward(self, root: Unit, blocks: list[Unit]) -> None:
        order = sorted(blocks, key=lambda unit: unit.backward[0])
        turns = [root, *order]
        for place, unit in enumerate(() if self.stays else turns):
            row = unit.backward[0]
            before = self.before.setdefault(row, [])
            if unit is not root:
                before += self._copy_out(unit, row)
            if place + 1 < len(turns):
                before += self._gather(turns[place + 1], row)
            if unit is not root:
                self._give_back(unit, unit.backward)
        for unit in (*order, root):
            if unit.gradients:
                row = unit.backward[1]
                self.behind.setdefault(row, []).extend(self._scatter(unit, row))

    def _shard(self, weight: Tensor) -> Tensor:
        """This rank's part, along the first dimension."""
        shape = (-(-weight.shape[0] // self.group.size), *weight.shape[1:]) if weight.shape else weight.shape
        return replace(weight, shape=shape, stride=contiguous_strides(shape), dtype=self._kept(weight.dtype))

    def _kept(self, dtype: str) -> str:
        """In what type shards of one are kept."""
        return FULL if self.mixed and dtype in HALF else dtype

    def _gather(self, unit: Unit, row: int) -> list[EditedCall]:
        """Copy the shards together and gather those of all ranks, on streams of their own."""
        like = replace(self.ops[row], module=unit.name or self.ops[row].module)
        shards = [self.shards[w.storage] for w in unit.weights]
        first = unit.weights[0]
        each = sum(s.numel for s in shards)
        room = self.draft.tensor((each * self.group.size,), first.dtype, first.device)
        mine = self.draft.view(room, (each,), 0)
        flat = [replace(s, shape=(s.numel,), stride=(1,)) for s in shards]
        copied = replace(like, stream=COPY_IN)
        cast, flat = self._cast(flat, first.dtype, copied) if self.mixed else ([], flat)
        sizes: list[object] = [s.numel for s in shards]
        copy = call_like("fsdp::all_gather_copy_in", (flat, room, sizes, each, 0), (mine, room), copied)
        there = replace(like, stream=GATHER)
        gather = self.draft.collective("all_gather", self.group, room, mine, there)
        self.gathered[unit.name] = (room, gather)
        wait = self.draft.wait_stream(GATHER, COPY_IN, like)
        return [*cast, EditedCall(allocation(room, like)), EditedCall(copy), *wait, gather]

    def _cast(self, flat: list[Tensor], dtype: str, like: Op) -> tuple[list[EditedCall], list[Tensor]]:
        """Shards in the type that they are gathered in, all in one room."""
        sizes = [shard.numel for shard in flat]
        room = self.draft.tensor((sum(sizes),), dtype, flat[0].device)
        parts = [self.draft.view(room, (size,), sum(sizes[:place])) for place, size in enumerate(sizes)]
        calls = [
            EditedCall(allocation(room, like)),
            EditedCall(call_like("aten::split_with_sizes", (room, sizes), (parts,), like)),
            EditedCall(call_like("aten::_foreach_copy_", (parts, flat), (None,), like)),
        ]
        return calls, parts

    def _copy_out(self, unit: Unit, row: int) -> list[EditedCall]:
        """Wait for what was gathered, and take it apart into the weights."""
        like = replace(self.ops[row], module=unit.name or self.ops[row].module)
        room, gather = self.gathered[unit.name]
        self.whole |= {w.storage: self.draft.copy(w).storage for w in unit.weights}
        ways, parts = self.group.size, [self.shards[w.storage].numel for w in unit.weights]
        outs = []
        grown = [
            EditedCall(call_like(RESIZE, (w.storage, self.whole[w.storage], w.nbytes), (), like)) for w in unit.weights
        ]
        looks = [
            EditedCall(call_like("aten::view", (room, [ways, -1]), (self.draft.view(room, (ways, sum(parts))),), like))
        ]
        for weight, part in zip(unit.weights, parts):
            whole = replace(weight, storage=self.whole[weight.storage])
            out = self.draft.view(whole, (ways, part))
            outs.append(out)
            looks.append(EditedCall(call_like("aten::view", (whole, [ways, -1]), (out,), like)))
        sizes: list[object] = list(parts)
        copy = call_like("fsdp::split_with_sizes_copy", (looks[0].op.outputs[0], sizes, 1), (None,), like, out=outs)
        self.frees.setdefault(row, []).append(room.storage)
        # No more than one gathered unit waits to be copied out: its room is used again.
        ahead = (
            [self.draft.wait_event(stream, self.copied, like) for stream in (COPY_IN, GATHER)] if self.copied else []
        )
        self.copied = self.draft.record_event(COMPUTE, like)
        return [self.draft.wait_for(gather, like), *ahead, *grown, *looks, EditedCall(copy), self.copied]

    def _storages(self, unit: Unit) -> dict[int, int]:
        return {w.storage: self.whole[w.storage] for w in unit.weights}

    def _give_back(self, unit: Unit, span: tuple[int, int]) -> None:
        """Between gathering and giving back, calls see the whole weights; afterwards these are freed."""
        storages = self._storages(unit)
        self.spans.append((range(span[0], span[1] + 1), storages))
        self.frees.setdefault(span[1] + 1, []).extend(storages.values())

    def _scatter(self, unit: Unit, row: int) -> list[EditedCall]:
        """Sum the gradients of a unit over all ranks, and keep a part of them."""
        like = replace(self.ops[row], module=unit.name, node="RegisterPostBackwardFunctionBackward")
        ways, device = self.group.size, unit.gradients[0].tensor.device
        shards = [self._shard(g.tensor) for g in unit.gradients]
        each = sum(s.numel for s in shards)
        room = self.draft.tensor((each * ways,), shards[0].dtype, device)
        rows = self.draft.view(room, (ways, each))
        kept = self.draft.tensor((each,), shards[0].dtype, device)
        grads: list[object] = [g.tensor for g in unit.gradients]
        there = replace(like, stream=SCATTER)
        scatter = self.draft.collective("reduce_scatter", self.group, kept, room, there)
        calls = [
            EditedCall(allocation(room, like)),
            EditedCall(call_like("aten::view", (room, [ways, -1]), (rows,), like)),
            EditedCall(call_like("fsdp::chunk_cat", (grads, 0, ways), (None,), like, out=rows)),
            EditedCall(allocation(kept, like)),
            *self.draft.wait_stream(SCATTER, COMPUTE, like),
            scatter,
        ]
        offset = 0
        for gradient, shard in zip(unit.gradients, shards):
            part = self.draft.view(kept, shard.shape, offset)
            self.scattered[gradient.tensor.storage] = part
            asked = (kept, list(part.shape), list(part.stride or ()), offset)
            calls.append(EditedCall(call_like("aten::as_strided", asked, (part,), there)))
            offset += shard.numel
        self.frees.setdefault(row + 1, []).extend([room.storage, *(g.tensor.storage for g in unit.gradients)])
        return calls

    def _changed(self, row: int, op: Op) -> Op:
        """A call with the whole weights where it runs between gathering and giving back, and shards in the update."""
        frees = tuple(s for s in op.frees if s not in self.dying) + tuple(self.frees.get(row, ()))
        op = replace(op, frees=frees)
        if op.phase == "optimizer":
            return with_tensors(op, self._updated) if not op.name.startswith("c10d::") else op
        for span, storages in self.spans:
            if row in span and any(t.storage in storages for t in (*op.tensors, *op.produced)):
                op = with_tensors(op, partial(_stored, storages))
        return op

    def _updated(self, tensor: Tensor) -> Tensor:
        scattered = self.scattered.get(tensor.storage)
        if scattered is not None:
            return replace(scattered, id=tensor.id)
        return tensor if tensor.storage in self.others else self._shard(tensor)


def _stored(storages: dict[int, int], tensor: Tensor) -> Tensor:
    return replace(tensor, storage=storages.get(tensor.storage, tensor.storage))
