"""Flat steps: the calls of a step in one list to edit, and the graph assembled from edited calls.

Every transform follows the same pattern: `editable_step` opens a step, the transform builds a list of `EditedCall`,
and `assemble` builds the new graph; `reassemble` also decides where storages are freed now. `UnusedIds` creates
tensors that are new to the step. `StepTemplate` serves transforms that change tensors only and are applied many times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.graph.calls import autograd_nodes, dispatched, enclosing_calls, host_collective_calls, with_scalars
from foretrace.graph.execution_traces import CompletedTrace, lacks_overloads
from foretrace.graph.graph import Collective, Graph, Timings, moved_host_times
from foretrace.graph.op import COMPILED_REGION, Op, Storage, Tensor, contiguous_strides, end_in_storage, with_tensors
from foretrace.graph.tables import SYNC, KernelTable, OpTable
from foretrace.transforms.dataflow import SlotCall, rebuild


@dataclass(slots=True)
class EditedCall:
    """A call of an edited step."""

    op: Op
    origin: int = -1
    """The row of the original step that it comes from; -1 for a new call."""
    collective: Collective | None = None
    """The collective that it performs, where the transform keeps track of them (`draft`)."""


def flatten(graph: Graph) -> Graph:
    """The step's dispatcher and side calls alone, as in a recording, without kernels and times.

    >>> trace = Graph(OpTable.of([Op("aten::linear"), Op("aten::t", parent=0), Op("aten::addmm", parent=0)]))
    >>> [op.name for op in flatten(trace).ops]
    ['aten::t', 'aten::addmm']
    """
    rows = call_rows(graph)
    ops = [graph.ops[row] for row in rows]
    groups, notes = graph.groups, list(graph.notes)
    nested = bool((graph.ops.parent[rows] >= 0).any()) if rows else False
    nodes = autograd_nodes(graph.ops, np.array(rows, np.int32)) if nested else []
    if lacks_overloads(ops) and any(tensor.id >= 0 for op in ops for tensor in op.tensors):
        completed = CompletedTrace(graph, rows)
        ops, groups = completed.ops, completed.groups
        notes += completed.notes
    for op, node in zip(ops, nodes):
        op.parent, op.node, op.args = -1, op.node or node, with_scalars(op.args)
    position = enclosing_calls(graph, np.array(rows, np.int32)).tolist()
    graph = replace(graph, collectives=_collectives_with_calls(graph, rows, position))
    flat = assemble(graph, [EditedCall(op, row) for op, row in zip(ops, rows)], position)
    return replace(flat, groups=groups, notes=notes)


def call_rows(graph: Graph) -> list[int]:
    """Rows of the dispatcher calls, and of the side calls that control streams and storages between them."""
    rows = set(dispatched(graph).tolist())
    side = graph.ops.names.matching(lambda name: Op(name).is_side_call)
    rows.update(np.flatnonzero(side[graph.ops.name]).tolist() if len(graph.ops) else ())
    return sorted(rows)


def _collectives_with_calls(graph: Graph, rows: Sequence[int], position: Sequence[int]) -> list[Collective]:
    """The collectives; one that gloo runs on a thread of its own gets the call that starts it."""
    if all(position[one.op] >= 0 for one in graph.collectives):
        return graph.collectives
    starting = host_collective_calls(graph, np.array(rows, np.int32))
    return [replace(one, op=starting.get(number, one.op)) for number, one in enumerate(graph.collectives)]


def editable_step(graph: Graph) -> tuple[Graph, list[Op]]:
    """The flat step and its calls in a list; raises if the calls do not identify their tensors."""
    if COMPILED_REGION in graph.ops.names.items:
        raise compiled_refusal(graph)
    flat = flatten(graph)
    ops = list(flat.ops)
    require_arguments(ops, graph.source)
    return flat, ops


def compiled_refusal(graph: Graph) -> ForetraceError:
    """The error for a change that can't be made to a compiled step."""
    return ForetraceError(
        f"{graph.title} is compiled: its kernels were fused for this very step",
        "Make the change in the script, or predict it uncompiled: set compile=off before it.",
    )


def require_arguments(ops: Sequence[Op], source: str) -> None:
    """Raise if calls do not identify the tensors they take: those of a profiler trace know shapes at best."""
    tensors = [tensor for op in ops for tensor in (*op.tensors, *op.produced)]
    if any(tensor.id >= 0 for tensor in tensors) if tensors else any(op.args or op.outputs for op in ops):
        return
    raise ForetraceError(
        f"{source or 'the trace'} does not hold its calls' arguments: a profiler trace alone never does",
        "Give the folder that also has the execution trace, or record the job with foretrace record.",
    )


def assemble(graph: Graph, calls: Sequence[EditedCall], position: Sequence[int] | None = None) -> Graph:
    """The graph of an edited step, given the original one.

    It has no times and no kernels, since it was not measured; synchronizations of the host stay. Storages are allocated
    by the first call that uses them, and freed where a call lists them in ``frees``. ``position`` has, for each row of
    the original, that of its call among ``calls``, and one entry more for "no row"; calls' origins say it where it is
    None.
    """
    if position is None:
        found = [-1] * (len(graph.ops) + 1)
        for number, call in enumerate(calls):
            if call.origin >= 0 and found[call.origin] < 0:
                found[call.origin] = number
        position = found
    ops = [call.op for call in calls]
    runtime = graph.calls.rows(graph.calls.kind == SYNC)
    runtime.op = np.array([position[op] for op in runtime.op.tolist()], np.int32)
    return replace(
        graph,
        ops=OpTable.of(ops).untimed(),
        calls=runtime.rows(runtime.op >= 0),
        kernels=KernelTable.empty(),
        collectives=[replace(c, op=position[c.op], kernel=-1) for c in graph.collectives if position[c.op] >= 0],
        indices=[replace(i, op=position[i.op]) for i in graph.indices if position[i.op] >= 0],
        storages=_storages(graph.storages, ops),
        **moved_host_times(graph, position[: len(graph.ops)], len(ops)),
        steps=[],
        unprofiled=Timings(),
        profiling_overhead=1.0,
        profiler_events=np.zeros(0),
        allocated=(),
        notes=list(graph.notes),
    )


def _storages(known: Mapping[int, Storage], ops: Sequence[Op]) -> dict[int, Storage]:
    """Storages with the calls that allocate, use and free them; those that no call uses stay as they were."""
    storages = {number: replace(was, death=-1) for number, was in known.items() if was.birth < 0}
    for row, op in enumerate(ops):
        for number in op.frees:
            if number in storages:
                storages[number].death = row
        read = op.tensors
        for tensor in (*read, *op.produced):
            number = tensor.storage
            if number < 0:
                continue
            storage = storages.get(number)
            if storage is None:
                was = known.get(number)
                # A compiled kernel takes its outputs as arguments: they were allocated in the original step, and are.
                birth = row if was or all(number != other.storage for other in read) else -1
                storage = replace(was, birth=birth, death=-1) if was else Storage(number, 0, tensor.device, birth)
                storages[number] = storage
            storage.nbytes = max(storage.nbytes, end_in_storage(tensor))
    return storages


def storages_in(ops: Iterable[Op]) -> set[int]:
    """Storages that calls use."""
    return {tensor.storage for op in ops for tensor in (*op.tensors, *op.produced)}


def reassemble(
    graph: Graph,
    original: Sequence[Op],
    calls: Sequence[EditedCall],
    early: Collection[int] = (),
    merged: Mapping[int, int] | None = None,
) -> Graph:
    """The graph of edited calls, with storages freed where the original calls freed them, but not before the last use.

    Storages in ``early`` are freed right after their last use. Those in ``merged`` became part of another, which is
    freed with the last of its parts. Those that no call uses any more are left out.
    """
    merged = merged or {}
    last = {t.storage: place for place, call in enumerate(calls) for t in (*call.op.tensors, *call.op.produced)}
    position = _positions(calls, len(original))
    ends = {storage: last[storage] + 1 for storage in early if storage in last}
    for origin, op in enumerate(original):
        for freed in op.frees:
            storage = merged.get(freed, freed)
            if storage in last and storage not in early:
                ends[storage] = max(position[origin], last[storage] + 1, ends.get(storage, 0))
    for call in calls:
        call.op.frees = ()
    for storage, place in ends.items():
        if place < len(calls):
            calls[place].op.frees += (storage,)
    unused = storages_in(original) - last.keys()
    storages = {number: storage for number, storage in graph.storages.items() if number not in unused}
    return assemble(replace(graph, storages=storages), calls)


def _positions(calls: Sequence[EditedCall], count: int) -> list[int]:
    """For each original row, the position of the first edited call that comes from it or from a later one."""
    positions = [len(calls)] * count
    for place in range(len(calls) - 1, -1, -1):
        if calls[place].origin >= 0:
            positions[calls[place].origin] = place
    for origin in range(count - 2, -1, -1):
        positions[origin] = min(positions[origin], positions[origin + 1])
    return positions


class UnusedIds:
    """Tensor and storage ids that a step does not use yet, handed out one by one."""

    def __init__(self, ops: Iterable[Op]) -> None:
        tensors = [tensor for op in ops for tensor in (*op.tensors, *op.produced)]
        self.next_tensor = max((tensor.id for tensor in tensors), default=-1) + 1
        self.next_storage = max((tensor.storage for tensor in tensors), default=-1) + 1

    def tensor_id(self) -> int:
        """A new tensor id."""
        self.next_tensor += 1
        return self.next_tensor - 1

    def storage_id(self) -> int:
        """A new storage id."""
        self.next_storage += 1
        return self.next_storage - 1

    def tensor(self, shape: Sequence[int], dtype: str, device: str) -> Tensor:
        """A new contiguous tensor with a storage of its own."""
        ids = self.tensor_id(), self.storage_id()
        return Tensor(tuple(shape), dtype, device, contiguous_strides(shape), 0, *ids)

    def view(self, of: Tensor, shape: Sequence[int], offset: int = 0) -> Tensor:
        """A new contiguous view of a tensor's storage."""
        return replace(of, shape=tuple(shape), stride=contiguous_strides(shape), offset=offset, id=self.tensor_id())

    def copy(self, of: Tensor) -> Tensor:
        """A tensor like another, with a storage of its own."""
        return replace(of, id=self.tensor_id(), storage=self.storage_id())


class SketchIds:
    """Ids in a step for the tensors of a sketch: some stand for tensors of the step, all others get unused ids."""

    def __init__(self, ops: Iterable[Op], same: Iterable[tuple[Tensor, Tensor]]) -> None:
        pairs = list(same)
        self._tensors = {new.id: was.id for new, was in pairs}
        self._storages = {new.storage: was.storage for new, was in pairs if new.storage >= 0 <= was.storage}
        self._unused = UnusedIds(ops)

    def storages(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """The step's ids of some storages."""
        return tuple(self._storages.get(number, number + self._unused.next_storage) for number in numbers)

    def _tensor(self, tensor: Tensor) -> Tensor:
        number = self._tensors.get(tensor.id, tensor.id + self._unused.next_tensor)
        return replace(tensor, id=number, storage=self.storages([tensor.storage])[0] if tensor.storage >= 0 else -1)

    def op(self, op: Op) -> Op:
        """A call of the sketch with the step's ids."""
        new = with_tensors(op, self._tensor)
        new.frees = self.storages(op.frees)
        return new


class StepTemplate:
    """A flat step to instantiate many times with other tensors in its ``changing`` calls; the rest is computed once."""

    def __init__(self, graph: Graph, calls: Sequence[SlotCall], changing: Sequence[SlotCall]) -> None:
        self._known = graph.storages
        self._template = assemble(graph, [EditedCall(call.op, call.row) for call in calls])
        self._ops = [call.op for call in calls]
        positions = {call.row: place for place, call in enumerate(calls)}
        self._positions = [positions[call.row] for call in changing]
        fixed = set(range(len(calls))) - set(self._positions)
        self._fixed = storage_extents(self._ops[place] for place in fixed)
        self._original = _largest(self._fixed, storage_extents(call.op for call in changing))

    def instantiate(self, changed: Sequence[SlotCall], tensors: dict[int, Tensor]) -> Graph:
        """The graph of the same calls, the changing ones with new arguments, and new tensors in their slots."""

        def now(slot: int, old: Tensor) -> Tensor:
            new = tensors[slot]
            if layout_key(new) == layout_key(old):
                return old
            return Tensor(
                new.shape, new.dtype, old.device, new.stride, new.offset, old.id, old.storage, old.layout, old.stored
            )

        new = [rebuild(call, now, now) for call in changed]
        ops = list(self._ops)
        for place, op in zip(self._positions, new):
            ops[place] = op
        extents, like = _largest(self._fixed, storage_extents(new)), self._template
        return replace(
            like,
            ops=replace(like.ops, detail=lambda row: ops[row].__copy__()),
            storages={n: self._resized(storage, extents.get(n, 0)) for n, storage in like.storages.items()},
            notes=list(like.notes),
        )

    def _resized(self, storage: Storage, used: int) -> Storage:
        """A storage of which calls now use so many bytes; what it had beyond that stays in proportion."""
        original, known = self._original.get(storage.id, 0), self._known.get(storage.id)
        nbytes = known.nbytes if known else 0
        if original and original != used:
            nbytes = round(nbytes * used / original)
        return replace(storage, nbytes=max(nbytes, used))


def _largest(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {**one, **{number: max(size, one.get(number, 0)) for number, size in other.items()}}


def layout_key(tensor: Tensor) -> tuple[object, ...]:
    """Shape, stride, offset and dtype: equal for a tensor that did not change."""
    return tensor.shape, tensor.stride, tensor.offset, tensor.dtype


def storage_extents(ops: Iterable[Op]) -> dict[int, int]:
    """For each storage that calls use, the bytes up to the last element that any of them uses."""
    largest: dict[int, int] = {}
    for op in ops:
        for tensor in (*op.tensors, *op.produced):
            if tensor.storage >= 0:
                largest[tensor.storage] = max(largest.get(tensor.storage, 0), end_in_storage(tensor))
    return largest
