"""Drafts of distributed steps: the calls of one rank's step, with collectives and stream events put between them.

The transforms of `parallel` start from `draft_of` the step of a single rank, insert, change and split its calls, and
end with `Draft.graph_of`. Kernel times of calls that stay unchanged are kept (`Graph.recorded_kernels`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foretrace.graph import Collective, Constant, ForetraceError, Graph, Op, OpTable, Storage, Tensor
from foretrace.graph.calls import dispatched, recorded_kernels
from foretrace.graph.graph import moved_host_times
from foretrace.graph.op import RESIZE, end_in_storage
from foretrace.graph.tables import CallTable, KernelTable
from foretrace.transforms.step import EditedCall, UnusedIds, storages_in

UPDATE = "foretrace::update_"
"""Stands for the optimizer of a step that has none."""
FUSED = "triton_"
"""Names of fused kernels begin so."""
COLLECTIVE_OPS = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_to_all": "c10d::alltoall_base_",
    "permute": "c10d::alltoall_base_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
}


@dataclass(frozen=True)
class ProcessGroup:
    """Ranks that communicate with each other, under a name."""

    name: str
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


class Draft(UnusedIds):
    """The calls of a graph in order, and what creates tensors, collectives and events to put between them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        collectives = {c.op: c for c in graph.collectives}
        self.calls = _with_allocations(
            [EditedCall(op, row, collectives.get(row)) for row, op in enumerate(graph.ops)], graph.storages
        )
        self.calls += _missing_update(self.ops, graph.storages)
        super().__init__(self.ops)
        self._work = self._event = 0
        touched = storages_in(self.ops)
        self._untouched = {n: s for n, s in graph.storages.items() if s.birth < 0 and n not in touched}
        """Storages that no call of the step uses: momenta of frozen weights, buffers. They stay allocated."""
        self.notes: list[str] = []
        """What a transform has to say about the step."""
        self.whole: dict[int, int] = {}
        """Bytes of storages that keep their size whatever calls use of them: a batch that is read in microbatches."""
        self.held: set[int] = set()
        """New storages that hold weights."""

    @property
    def ops(self) -> list[Op]:
        """The ops of the calls."""
        return [call.op for call in self.calls]

    def reserve(self, copies: int) -> int:
        """Reserve ids for so many copies of all tensors; returns the distance between the ids of two copies."""
        stride = max(self.next_tensor, self.next_storage)
        self.next_tensor = self.next_storage = stride * copies
        return stride

    def collective(
        self, kind: str, group: ProcessGroup, out: Tensor, given: Tensor, like: Op, peer: int = -1
    ) -> EditedCall:
        """A call that starts a collective from ``given`` to ``out``, in the phase, module and thread of another op."""
        where, work = Constant("group", group.name), Constant("work", f"{group.name}.{self._work}")
        self._work += 1
        if kind in ("send", "recv"):
            args: tuple[Any, ...] = ([given], where, peer, 0)
        elif out.id == given.id:
            args = ([given], where, Constant("reduce_op", "sum"), None)
        else:
            args = (out, given, where, False)
        op = call_like(COLLECTIVE_OPS[kind], args, (out, work), like)
        sized = out if kind == "all_gather" else given
        collective = Collective(kind, group.name, sized.nbytes, -1, -1, group.ranks, sized.dtype, peer)
        return EditedCall(op, collective=collective)

    def wait_for(self, collective: EditedCall, like: Op) -> EditedCall:
        """The call by which the host makes the current stream wait for a collective's result."""
        return EditedCall(call_like("c10d::wait", (collective.op.outputs[-1],), (), like))

    def record_event(self, stream: int, like: Op) -> EditedCall:
        """An event recorded on a stream."""
        event = Constant("event", f"parallel.{self._event}")
        self._event += 1
        args = (event, Constant("stream", str(stream)))
        return EditedCall(call_like("cuda::event_record", args, (), replace(like, stream=stream)))

    def wait_event(self, stream: int, recorded: EditedCall, like: Op) -> EditedCall:
        """A stream waits for a recorded event."""
        args = (Constant("stream", str(stream)), recorded.op.args[0])
        return EditedCall(call_like("cuda::stream_wait_event", args, (), replace(like, stream=stream)))

    def wait_stream(self, stream: int, other: int, like: Op) -> list[EditedCall]:
        """A stream waits for the work that another one has so far."""
        recorded = self.record_event(other, like)
        return [recorded, self.wait_event(stream, recorded, like)]

    def graph_of(self, calls: Iterable[EditedCall], rank: int, world: int, note: str) -> Graph:
        """The graph of some calls, with their memory, without the measurements of the original step."""
        calls, graph = [call for call in calls if call.op.name != UPDATE], self.graph
        collectives = [replace(call.collective, op=row) for row, call in enumerate(calls) if call.collective]
        position = {call.origin: row for row, call in enumerate(calls) if call.origin >= 0}
        return replace(
            graph,
            ops=OpTable.of([call.op for call in calls]).untimed(),
            calls=CallTable.empty(),
            kernels=KernelTable.empty(),
            collectives=collectives,
            groups=graph.groups | {c.group: c.ranks for c in collectives},
            storages=self._untouched | self._lifetimes([call.op for call in calls]),
            indices=[replace(i, op=position[i.op]) for i in graph.indices if i.op in position],
            **moved_host_times(graph, [position.get(row, -1) for row in range(len(graph.ops))], len(calls)),
            rank=rank,
            world=world,
            steps=[],
            profiler_events=np.zeros(0),
            allocated=(),
            unprofiled=type(graph.unprofiled)(),
            notes=[*graph.notes, *filter(None, [note]), *self.notes],
        )

    def _lifetimes(self, ops: Sequence[Op]) -> dict[int, Storage]:
        found = storage_lifetimes(ops, self.graph.storages)
        for number in self.whole.keys() & found.keys():
            found[number].nbytes = max(found[number].nbytes, self.whole[number])
        for number in self.held & found.keys():
            found[number].held = True
        return found


def _missing_update(ops: Sequence[Op], known: Mapping[int, Storage]) -> list[EditedCall]:
    """A call that stands for the optimizer of a step without one, so that weights and gradients are known by it.

    `Draft.graph_of` leaves it out. Weights are what modules hold and forward reads; the gradient of each is what
    backward makes in its shape and keeps, in the same module if possible.
    """
    if any(op.phase == "optimizer" for op in ops) or not any(op.phase == "backward" for op in ops):
        return []
    weights = {
        t.storage: (t, op.module)
        for op in reversed(ops)
        for t in op.tensors
        if op.phase == "forward" and _is_weight(t, known)
    }
    freed = {storage for op in ops for storage in op.frees}
    made = {t.storage: (t, op.module) for op in ops if op.phase == "backward" for t in op.produced}
    kept = [(t, at) for t, at in made.values() if t.storage not in freed and t.storage not in weights]
    pairs: list[tuple[Tensor, Tensor]] = []
    for weight, module in reversed(weights.values()):
        alike = [one for one in kept if one[0].shape == weight.shape]
        found = next((one for one in alike if one[1] == module), alike[-1] if alike else None)
        if found:
            kept.remove(found)
            pairs.append((weight, found[0]))
    if not pairs:
        return []
    update = call_like(UPDATE, ([w for w, _ in pairs], [g for _, g in pairs]), (), ops[-1])
    update.phase, update.module, update.node = "optimizer", "", ""
    return [EditedCall(update)]


def _is_weight(tensor: Tensor, known: Mapping[int, Storage]) -> bool:
    return tensor.storage in known and known[tensor.storage].held and tensor.dtype.startswith(("float", "bfloat"))


def _with_allocations(calls: Sequence[EditedCall], known: Mapping[int, Storage]) -> list[EditedCall]:
    """The calls with an allocation before each fused kernel: it takes the buffers that it writes as arguments."""
    made: set[int] = {number for number, storage in known.items() if storage.birth < 0}
    found: list[EditedCall] = []
    for call in calls:
        if call.op.name.startswith(FUSED):
            new = {t.storage: t for t in call.op.produced if t.storage not in made}
            found += [EditedCall(allocation(tensor, call.op)) for tensor in new.values()]
        made |= {t.storage for t in call.op.produced}
        found.append(call)
    return found


def call_like(name: str, args: tuple[Any, ...], outputs: tuple[Any, ...], like: Op, **kwargs: Any) -> Op:
    """A new call with the phase, thread, stream, module and autograd node of another."""
    where = {n: getattr(like, n) for n in ("phase", "thread", "stream", "module", "node")}
    return Op(name, args, kwargs, outputs, "default", **where)


def allocation(tensor: Tensor, like: Op) -> Op:
    """The ``aten::empty`` call that allocates a tensor."""
    kind = {"dtype": Constant("dtype", tensor.dtype), "device": Constant("device", tensor.device), "pin_memory": False}
    made = call_like("aten::empty", (list(tensor.shape),), (tensor,), like, **kind)
    made.overload = "memory_format"
    return made


def freed_after_last_use(
    calls: Sequence[EditedCall], storages: Collection[int], held: Mapping[int, int] | None = None
) -> None:
    """Free some storages, as far as calls allocate them, after the last call that uses them.

    Those that are ``held`` by another storage (a variable of the program that made both) stay until that one is made.
    """
    made: set[int] = set()
    last: dict[int, int] = {}
    made_by: dict[int, int] = {}
    for row, call in enumerate(calls):
        made.update(t.storage for t in call.op.produced if t.storage in storages and t.storage not in last)
        last |= {t.storage: row for t in (*call.op.tensors, *call.op.produced) if t.storage in storages}
        made_by |= dict.fromkeys((t.storage for t in call.op.produced), row) if held else {}
    for storage, until in (held or {}).items():
        last[storage] = max(last.get(storage, 0), made_by[until])
    for storage, row in last.items():
        if storage in made and row + 1 < len(calls):
            after = calls[row + 1]
            after.op = replace(after.op, frees=(*after.op.frees, storage))


def storage_lifetimes(ops: Sequence[Op], known: Mapping[int, Storage]) -> dict[int, Storage]:
    """The storages that calls read and make: size, allocation and free; ``known`` are those of the original step."""
    found: dict[int, Storage] = {}
    for row, op in enumerate(ops):
        for storage in op.frees:
            if storage in found:
                found[storage].death = row
        if op.name == RESIZE and isinstance(op.args[1], int) and op.args[1] not in found:
            found[op.args[1]] = Storage(op.args[1], 0, "", row)
        for birth, tensors in ((-1, op.tensors), (row, op.produced)):
            for tensor in tensors:
                if tensor.storage < 0:
                    continue
                entry = found.get(tensor.storage)
                if entry is None:
                    entry = found[tensor.storage] = Storage(tensor.storage, 0, tensor.device, birth)
                entry.nbytes, entry.device = max(entry.nbytes, end_in_storage(tensor)), tensor.device
    for number in found.keys() & known.keys():
        found[number].held, found[number].pinned = known[number].held, known[number].pinned
        if found[number].death < 0 <= known[number].death:  # freed when the step ends, after its last call
            found[number].death = len(ops)
    return found


def draft_of(graph: Graph, what: str) -> Draft:
    """The draft of a single rank's step; raises for a distributed step, or one without tensor ids."""
    if not len(graph.ops):
        raise ForetraceError(f"{graph.source or 'the graph'} holds no calls", "Record or sketch a training step.")
    first = next(iter(graph.collectives), None)
    if graph.world > 1 or first is not None:
        seen = f"it calls {first.kind} in group {first.group}" if first is not None else f"it is of {graph.world} ranks"
        raise ForetraceError(
            f"{graph.source or 'the graph'} is distributed already: {seen}",
            f"{what} starts from the step of one rank alone: sketch or record it without its process group.",
        )
    return Draft(replace(with_tensor_ids(graph), recorded_kernels=recorded_kernels(graph)))


def with_tensor_ids(graph: Graph) -> Graph:
    """The graph's dispatcher calls; raises if they do not identify tensors."""
    flat = graph
    if bool((graph.ops.parent >= 0).any()):
        rows = dispatched(graph).tolist()
        place = {row: position for position, row in enumerate(rows)}
        times = moved_host_times(graph, [place.get(row, -1) for row in range(len(graph.ops))], len(rows))
        flat = replace(graph, ops=OpTable.of([replace(graph.ops[row], parent=-1) for row in rows]), **times)
    if not any(t.id >= 0 for op in flat.ops for t in op.tensors):
        raise ForetraceError(
            f"{graph.source or 'the graph'} does not identify its tensors",
            "Sketch the step, or record it: a profiler trace knows shapes only.",
        )
    return flat
