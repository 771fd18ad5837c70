"""Pipeline parallel: each rank holds some of the blocks, and microbatches go from one stage to the next.

A stage receives the input of its first block, does its forward, and sends its output on; in backward gradients go the
other way. Gradients are accumulated over the microbatches, and the optimizer updates the stage's own weights. Gradients
of a weight that the first and last stage share are reduced between the two, as Megatron does with tied embeddings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foretrace.graph import Constant, ForetraceError, Op, Tensor
from foretrace.graph.op import HALF_DTYPES, RESIZE, with_tensors
from foretrace.transforms.blocks import block_index, numbered_blocks
from foretrace.transforms.draft import Draft, ProcessGroup, allocation, call_like
from foretrace.transforms.parallel.schedules import (
    INPUTS,
    WEIGHTS,
    ZERO_BUBBLE,
    ZERO_BUBBLE_V,
    ScheduledPass,
    check_schedule,
    chunks_of,
    stage_of,
    stage_schedule,
)
from foretrace.transforms.parallel.splitting import preexisting_tensors
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import (
    FULL,
    Gradient,
    Weights,
    propagate_owners,
    restrict_update,
    weights_of,
    written_in_place,
)

ADDED, FUSED = "added", "fused"
"""How gradients in half precision are added up in float32."""
GEMMS = frozenset(("aten::mm", "aten::_grouped_mm"))
"""What makes gradients of weights, of experts too, and may add to a sum itself."""
VIEWS = ("aten::t", "aten::transpose", "aten::view", "aten::detach")
"""What else makes a gradient that a GEMM may add to the sum; others are added up afterwards."""


def split_stages(
    draft: Draft,
    calls: Sequence[EditedCall],
    ranks: tuple[int, ...],
    microbatches: int,
    schedule: str,
    chunks: int,
    full_sums: str = "",
    holds_exchanged: bool = False,
) -> list[list[EditedCall]]:
    """The calls of each stage of a step, given its calls on one microbatch and the rank of each stage.

    With ``full_sums`` gradients in half precision are added up in float32: after the backward of their block
    (``ADDED``), as FSDP2 does, or by the GEMMs that make them (``FUSED``), as Megatron's gradient accumulation fusion.

    With ``holds_exchanged`` a stage receives each microbatch into a buffer that lasts, holds what it sent on until the
    backward of that microbatch, and gradients that it sent back until the next ones, as `torch.distributed.pipelining`
    does; else it frees each as soon as it can, as Megatron does.
    """
    check_schedule(schedule, len(ranks), microbatches, chunks)
    chunks = chunks_of(schedule, chunks)
    apart = schedule in (ZERO_BUBBLE, ZERO_BUBBLE_V)
    stages = Stages.of(calls, len(ranks) * chunks, draft.graph.source, apart)
    if full_sums == ADDED:
        stages.add_up_by_block([call.op for call in calls])
    stage_of_chunk = [stage_of(chunk, len(ranks), schedule) for chunk in range(len(ranks) * chunks)]
    id_stride = draft.reserve(microbatches)
    staged = []
    for stage in range(len(ranks)):
        order = stage_schedule(schedule, stage, len(ranks), microbatches, chunks)
        homes = [ranks[there] for there in stage_of_chunk]
        shape = homes, ranks[stage], id_stride, full_sums, holds_exchanged
        staged.append(_Stage(draft, calls, stages, *shape).made(order))
    return staged


@dataclass
class Chunk:
    """Some consecutive blocks of a stage, with what comes before the first and after the last."""

    forward: list[int] = field(default_factory=list)
    """Rows of its calls."""
    backward: list[int] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    """Activations from the previous chunk."""
    input_gradients: list[Tensor] = field(default_factory=list)
    """Gradients for the previous chunk."""
    gradients: list[Gradient] = field(default_factory=list)
    weights: set[int] = field(default_factory=set)
    last_use: dict[int, list[int]] = field(default_factory=dict)
    """Storages that are not used after a row."""
    of_weights: int = 0
    """How many rows of backward, the last ones, only gradients of weights depend on, if they are taken apart."""

    def rows(self, part: str) -> list[int]:
        """The rows of a part of backward."""
        split = len(self.backward) - self.of_weights
        return {"": self.backward, INPUTS: self.backward[:split], WEIGHTS: self.backward[split:]}[part]


@dataclass(frozen=True)
class TiedWeight:
    """A weight that several chunks use: each has a gradient of its own, and they must be reduced."""

    gradient: int
    """Storage of the sum in the step of one rank."""
    row: int
    """The call that makes the sum there."""
    parts: tuple[tuple[int, Tensor], ...]
    """Chunk and its gradient."""


@dataclass
class Stages:
    """A step divided into chunks, and what belongs to none of them."""

    chunks: list[Chunk]
    update: list[int]
    """Rows of the optimizer, and of what comes after it."""
    preexisting: set[int]
    """Storages that existed before the step."""
    tied: list[TiedWeight]
    used_after: set[int]
    """Storages that these calls use: of the first microbatch, where each has its own."""
    made_by_gemm: set[int]
    """Storages that one GEMM of the backward makes, and that other calls only view."""

    @classmethod
    def of(cls, calls: Sequence[EditedCall], count: int, source: str, apart: bool = False) -> Stages:
        """Divide a step into chunks of equally many blocks; ``source`` names it in messages.

        With ``apart`` the calls of backward that only gradients of weights depend on come after all others.
        """
        ops = [call.op for call in calls]
        blocks = numbered_blocks(ops)
        _check_divisible(blocks, count, source)
        found, preexisting = weights_of(ops, source), set(preexisting_tensors(ops))
        chunk_of = _chunk_of_rows(ops, blocks, count)
        chunks = [Chunk() for _ in range(count)]
        last = max(row for row, op in enumerate(ops) if op.phase == "backward")
        for row in range(last + 1):
            chunk = chunks[chunk_of[row]]
            (chunk.backward if ops[row].phase == "backward" else chunk.forward).append(row)
            if ops[row].phase == "forward":
                chunk.weights |= {t.storage for t in ops[row].tensors} & found.weights.keys()
        tied = _assign_gradients(ops, found, chunk_of, chunks)
        _find_transfers(ops, chunk_of, chunks, found, {t.row for t in tied}, preexisting)
        for chunk in chunks:
            if apart:
                _take_apart(ops, chunk)
            _find_last_uses(ops, chunk, preexisting)
        made: dict[int, set[str]] = {}
        for op in ops[: last + 1]:
            for tensor in op.produced if op.phase == "backward" else ():
                made.setdefault(tensor.storage, set()).add(op.name)
        gemms = {storage for storage, names in made.items() if names & GEMMS and names <= GEMMS.union(VIEWS)}
        used_after = {tensor.storage for op in ops[last + 1 :] for tensor in op.tensors}
        return cls(chunks, list(range(last + 1, len(ops))), preexisting, tied, used_after, gemms)

    def add_up_by_block(self, ops: Sequence[Op]) -> None:
        """Gradients are complete when the backward of their block is done, or of the chunk for what is in no block."""
        blocks = numbered_blocks(ops)
        for chunk in self.chunks:
            place = {row: number for number, row in enumerate(chunk.backward)}
            last, block = dict[int, int](), -1
            for row in chunk.backward:
                if not ops[row].node.endswith("AccumulateGrad"):
                    block = block_index(ops[row].module, blocks)
                last[block] = row
            last[-1] = chunk.backward[-1] if chunk.backward else -1
            chunk.gradients = [
                replace(one, ready=max(one.ready, last.get(block_index(one.module, blocks), -1), key=place.__getitem__))
                for one in chunk.gradients
            ]


ENDS = 2
"""Embedding and head, which are as much work as a block each in Llama 3.1 405B: 126 blocks in 8 or 16 stages."""


def _check_divisible(blocks: Sequence[str], count: int, source: str) -> None:
    if count > 1 and len(blocks) < count:
        named = f": {', '.join(blocks[:3])}, …" if blocks else ""
        raise ForetraceError(
            f"{source or 'the graph'} repeats {len(blocks)} blocks{named}, too few for {count} stages",
            "A stage needs at least one block: give fewer stages, or fewer chunks."
            if blocks
            else "Record it, or sketch it: traces lack modules.",
        )
    if count > 1 and len(blocks) % count and (len(blocks) + ENDS) % count:
        raise ForetraceError(
            f"{len(blocks)} blocks ({blocks[0]}, …) can't be divided evenly into {count} stages",
            "Give a number of stages and chunks that divides the blocks.",
        )


def _chunk_of_rows(ops: Sequence[Op], blocks: Sequence[str], count: int) -> list[int]:
    """The chunk of each call: that of its block, else of the previous block; in backward the last one comes first.

    Where blocks can't be divided evenly, embedding and head count as one each: the first stage and the last have one
    block fewer than others.
    """
    block_of_module = {module: block_index(module, blocks) for module in {op.module for op in ops}}
    block = [block_of_module[op.module] for op in ops]
    end = max((row for row, op in enumerate(ops) if op.phase == "forward" and block[row] >= 0), default=len(ops))
    lead = 1 if len(blocks) % count else 0
    chunks: list[int] = []
    at, backward = 0, False
    for row, op in enumerate(ops):
        if op.phase == "backward" and not backward:
            at, backward = count - 1, True
        if block[row] >= 0:
            at = (block[row] + lead) * count // (len(blocks) + 2 * lead)
        elif row > end and not backward:
            at = count - 1
        chunks.append(at)
    return chunks


def _assign_gradients(
    ops: Sequence[Op], found: Weights, chunk_of: Sequence[int], chunks: Sequence[Chunk]
) -> list[TiedWeight]:
    """Give each chunk the gradients that it makes; returns the weights of which several make a gradient."""
    first, last = _backward_writers(ops)
    tied = []
    for gradient in found.gradients:
        row = first[gradient.tensor.storage]
        merge = ops[row]
        parts = tuple(
            (chunk_of[first[t.storage]], t)
            for t in merge.tensors
            if merge.name == "aten::add" and t.shape == gradient.tensor.shape and t.storage in first
        )
        if len({chunk for chunk, _ in parts}) < 2:
            chunks[chunk_of[gradient.ready]].gradients.append(gradient)
            continue
        tied.append(TiedWeight(gradient.tensor.storage, row, parts))
        for chunk, part in parts:
            ready = last[part.storage]
            chunks[chunk].gradients.append(Gradient(part, ready, ops[ready].module))
    return tied


def _backward_writers(ops: Sequence[Op]) -> tuple[dict[int, int], dict[int, int]]:
    """For each storage, the first backward call that makes something in it, and the last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for row, op in enumerate(ops):
        if op.phase == "backward":
            for tensor in op.produced:
                first.setdefault(tensor.storage, row)
                last[tensor.storage] = row
    return first, last


def _find_transfers(
    ops: Sequence[Op],
    chunk_of: Sequence[int],
    chunks: Sequence[Chunk],
    found: Weights,
    merges: set[int],
    preexisting: set[int],
) -> None:
    """Set what each chunk receives from the previous one, and returns to it.

    What depends on no weight (masks, positions) is computed by each chunk itself.
    """
    trained = set(found.weights)
    made: dict[int, tuple[int, bool]] = {}
    for row in range(max(chunk.backward[-1] for chunk in chunks if chunk.backward) + 1):
        op, here = ops[row], chunk_of[row]
        forward = op.phase != "backward"
        if row in merges:
            continue
        for tensor in op.tensors:
            if tensor.storage in preexisting or tensor.storage not in trained or tensor.storage not in made:
                continue
            there, in_forward = made[tensor.storage]
            if in_forward and there < here:
                _add(tensor, (chunks[c].inputs for c in range(there + 1, here + 1)))
            elif not in_forward and not forward and there > here:
                _add(tensor, (chunks[c].input_gradients for c in range(here + 1, there + 1)))
        if any(t.storage in trained for t in op.tensors):
            trained |= {t.storage for t in op.produced}
        for tensor in op.produced:
            made.setdefault(tensor.storage, (here, forward))


def _add(tensor: Tensor, lists: Iterable[list[Tensor]]) -> None:
    for tensors in lists:
        if all(tensor.storage != other.storage for other in tensors):
            tensors.append(tensor)


def _take_apart(ops: Sequence[Op], chunk: Chunk) -> None:
    """Put the calls that only gradients of weights depend on behind the others, in the order that they have.

    What the previous chunk waits for are the gradients of its results; in the first chunk, that is the call which makes
    the last gradient: of an embedding, or of the first layer.
    """
    needed = {tensor.storage for tensor in chunk.input_gradients}
    if not needed and chunk.gradients:
        final = max(row for row in chunk.backward if _makes(ops[row], {g.tensor.storage for g in chunk.gradients}))
        while ops[final].name in VIEWS and final > chunk.backward[0]:
            final = max((row for row in chunk.backward if row < final), default=final)
        needed = {tensor.storage for tensor in ops[final].tensors}
        chunk_rows = [row for row in chunk.backward if row < final]
    else:
        chunk_rows = chunk.backward
    inputs: set[int] = set()
    for row in reversed(chunk_rows):
        op = ops[row]
        if _makes(op, needed) or not (op.tensors or op.produced):
            inputs.add(row)
            needed |= {tensor.storage for tensor in op.tensors}
    later = [row for row in chunk.backward if row not in inputs]
    chunk.backward = [row for row in chunk.backward if row in inputs] + later
    chunk.of_weights = len(later)


def _makes(op: Op, storages: Collection[int]) -> bool:
    """Whether a call makes or changes one of some storages."""
    return any(tensor.storage in storages for tensor in (*op.produced, *written_in_place(op)))


def _find_last_uses(ops: Sequence[Op], chunk: Chunk, preexisting: set[int]) -> None:
    """Set after which call a chunk may free each storage that the optimizer does not need.

    Where the step of one rank frees it within the chunk, there: autograd keeps what it saved until its node is done.
    """
    kept = preexisting | {g.tensor.storage for g in chunk.gradients}
    rows = (*chunk.forward, *chunk.backward)
    last: dict[int, int] = {}
    for row in rows:
        last |= {t.storage: row for t in (*ops[row].tensors, *ops[row].produced) if t.storage not in kept}
    place = {row: number for number, row in enumerate(rows)}
    for row in rows:
        after = ops[row + 1].frees if row + 1 in place else ()
        last |= {storage: row for storage in after if place[last.get(storage, row)] < place[row]}
    for storage, row in last.items():
        chunk.last_use.setdefault(row, []).append(storage)


class _Stage:
    """Makes the calls of one stage.

    Tensors of microbatch ``m`` have the ids of the first one plus ``m`` times ``id_stride``.
    """

    def __init__(
        self,
        draft: Draft,
        calls: Sequence[EditedCall],
        stages: Stages,
        homes: Sequence[int],
        rank: int,
        id_stride: int,
        full_sums: str,
        holds_exchanged: bool,
    ) -> None:
        self.draft, self.calls, self.stages = draft, calls, stages
        self.homes, self.id_stride = homes, id_stride
        self.chunks = [c for c, home in enumerate(homes) if home == rank]
        self.sums: dict[int, Tensor] = {}
        """The float32 sum of a gradient over microbatches, by the storage of the first one's gradient."""
        self.adds = full_sums == ADDED
        self.fused: set[int] = set()
        """Gradients that their GEMMs add to the sum."""
        for gradient in (g for c in self.chunks for g in stages.chunks[c].gradients if full_sums):
            tensor = gradient.tensor
            if tensor.dtype in HALF_DTYPES:
                self.sums[tensor.storage] = draft.tensor(tensor.shape, FULL, tensor.device)
                if full_sums == FUSED and tensor.storage in stages.made_by_gemm:
                    self.fused.add(tensor.storage)
        self.skipped = {tied.row for tied in stages.tied}
        self.received: set[int] = set()
        """Storages of what is received into buffers that last."""
        self.sent: dict[int, list[int]] = {}
        """Storages of what a chunk sends on, and holds until backward."""
        self.returned: set[int] = set()
        """Storages of gradients that are sent back, and held until others are."""
        self.returned_last: list[int] = []
        self.sending: list[int] = []
        """Storages that no call of this stage uses once they are sent."""
        self.freed_by_other = self._freed_by_other()
        for chunk in self.chunks if holds_exchanged else ():
            before, after = self._exchanged(chunk - 1, chunk), self._exchanged(chunk, chunk + 1)
            if before:
                self.received |= {t.storage for t in before.inputs}
                self.returned |= {t.storage for t in before.input_gradients}
            if after:
                self.received |= {t.storage for t in after.input_gradients}
                self.sent[chunk] = [t.storage for t in after.inputs if t.storage not in self.received]
        self.output: list[EditedCall] = []
        self.to_free: list[int] = []

    def made(self, order: Sequence[ScheduledPass]) -> list[EditedCall]:
        """The calls, in the order of a schedule."""
        for one in order:
            chunk = self.chunks[one.chunk]
            if one.forward:
                self._forward(chunk, one.microbatch)
            else:
                self._backward(chunk, one.microbatch, one.part)
        self.to_free += self.returned_last
        self._reduce_tied()
        self._update()
        return self.output

    def _freed_by_other(self) -> dict[int, set[int]]:
        """For each chunk, storages that a neighbour on the same rank uses later, and frees."""
        found: dict[int, set[int]] = {chunk: set() for chunk in self.chunks}
        for target in self.chunks:
            source = target - 1
            if source not in found:
                continue
            before, after = self.stages.chunks[source], self.stages.chunks[target]
            backward = {storage for row in before.backward for storage in before.last_use.get(row, ())}
            used = {storage for storages in after.last_use.values() for storage in storages}
            given = {tensor.storage for tensor in after.inputs}
            found[source] |= given & used - backward
            found[target] |= given & backward | {tensor.storage for tensor in after.input_gradients} & backward
        return found

    def _exchanged(self, source: int, target: int) -> Chunk | None:
        """The chunk that receives from the one before it, where there is one on another rank."""
        inside = source >= 0 and target < len(self.homes)
        return self.stages.chunks[target] if inside and self.homes[source] != self.homes[target] else None

    def _forward(self, chunk: int, microbatch: int) -> None:
        ours, last = self.stages.chunks[chunk], len(self.stages.chunks) - 1
        self._transfer("recv", ours.inputs if chunk else [], chunk - 1, chunk, microbatch)
        sent = self.stages.chunks[chunk + 1].inputs if chunk < last else []
        self._call(chunk, ours.forward, microbatch, sent)
        self._transfer("send", sent, chunk, chunk + 1, microbatch)
        self._free_sending()

    def _backward(self, chunk: int, microbatch: int, part: str) -> None:
        ours, last = self.stages.chunks[chunk], len(self.stages.chunks) - 1
        if part == WEIGHTS:
            self._call(chunk, ours.rows(part), microbatch)
            self._free_sent(chunk, microbatch)
            return
        received = self.stages.chunks[chunk + 1].input_gradients if chunk < last else []
        self._transfer("recv", received, chunk + 1, chunk, microbatch)
        self._call(chunk, ours.rows(part), microbatch, ours.input_gradients)
        if not part:
            self._free_sent(chunk, microbatch)
        self.to_free += self.returned_last
        made = (t.storage for t in ours.input_gradients if t.storage in self.returned - self.received)
        self.returned_last = [storage + microbatch * self.id_stride for storage in made]
        self._transfer("send", ours.input_gradients if chunk else [], chunk, chunk - 1, microbatch)
        self._free_sending()

    def _free_sending(self) -> None:
        """Free what was sent, and is not used any more."""
        self.to_free += self.sending
        self.sending = []

    def _free_sent(self, chunk: int, microbatch: int) -> None:
        """Free what was held of a microbatch that was sent on, after its backward."""
        self.to_free += [storage + microbatch * self.id_stride for storage in self.sent.get(chunk, ())]

    def _transfer(self, kind: str, tensors: Sequence[Tensor], source: int, target: int, microbatch: int) -> None:
        """Send tensors from one chunk to another, or receive them, in a process group of the two ranks."""
        if not tensors or self.homes[source] == self.homes[target]:
            return
        ends = self.homes[source], self.homes[target]
        forward = source < target
        group = ProcessGroup(f"{'forward' if forward else 'backward'} to chunk {target}", ends)
        ours = self.stages.chunks[source if kind == "send" else target]
        rows = ours.forward if forward else ours.backward
        like = self.calls[rows[-1] if kind == "send" else rows[0]].op
        for tensor in tensors:
            moved = self._of_microbatch(tensor, microbatch)
            if kind == "recv" and tensor.storage not in self.received:
                self._emit(EditedCall(allocation(moved, like)))
            self._emit(self.draft.collective(kind, group, moved, moved, like, ends[kind == "send"]))

    def _call(self, number: int, rows: Sequence[int], microbatch: int, sent: Sequence[Tensor] = ()) -> None:
        chunk, to_send = self.stages.chunks[number], {tensor.storage for tensor in sent}
        later = self.stages.used_after if not microbatch else ()
        held = self.received.union(self.returned, self.freed_by_other[number], later, *self.sent.values())
        ready: dict[int, list[Gradient]] = {}
        for gradient in chunk.gradients:
            made = gradient.tensor.storage
            if made not in self.fused and (microbatch or made in self.sums):
                ready.setdefault(gradient.ready, []).append(gradient)

        def renamed(tensor: Tensor) -> Tensor:
            own = self._of_microbatch(tensor, microbatch)
            if tensor.storage in self.fused:
                return replace(own, storage=self.sums[tensor.storage].storage, dtype=FULL)
            return own

        for row in (row for row in rows if row not in self.skipped):
            call = self.calls[row]
            op = with_tensors(call.op, renamed) if microbatch or self.fused else call.op.__copy__()
            op.frees = ()
            if op.name == RESIZE:
                storage: Any = op.args[1]
                shift = 0 if storage in self.stages.preexisting else microbatch * self.id_stride
                op.args = (op.args[0], storage + shift, *op.args[2:])
            collective = replace(call.collective) if call.collective else None
            self._emit(EditedCall(op, call.origin if not microbatch else -1, collective))
            unused = [storage for storage in chunk.last_use.get(row, ()) if storage not in held]
            self.to_free += [s + microbatch * self.id_stride for s in unused if s not in to_send]
            self.sending += [s + microbatch * self.id_stride for s in unused if s in to_send]
            accumulated = []
            for gradient in ready.get(row, ()):
                complete, like = gradient.tensor, replace(op, module=gradient.module)
                own, whole = self._of_microbatch(complete, microbatch), self.sums.get(complete.storage, complete)
                if not microbatch and self.adds:
                    add = call_like("aten::_to_copy", (own,), (whole,), like, dtype=Constant("dtype", FULL))
                else:
                    if not microbatch:
                        self._emit(EditedCall(allocation(whole, like)))
                    add = call_like("aten::add_", (whole, own), (whole,), like)
                    add.overload, add.node = "Tensor", "torch::autograd::AccumulateGrad"
                self._emit(EditedCall(add))
                accumulated.append(own.storage)
            self.to_free += dict.fromkeys(accumulated)

    def _of_microbatch(self, tensor: Tensor, microbatch: int) -> Tensor:
        if tensor.storage in self.stages.preexisting or not microbatch:
            return tensor
        t, shift = tensor, microbatch * self.id_stride
        # Several times as fast as replace(): there is one per tensor of each call and microbatch.
        return Tensor(
            t.shape, t.dtype, t.device, t.stride, t.offset, t.id + shift, t.storage + shift, t.layout, t.stored
        )

    def _emit(self, call: EditedCall) -> None:
        if self.to_free:
            call.op.frees = (*call.op.frees, *self.to_free)
            self.to_free = []
        self.output.append(call)

    def _reduce_tied(self) -> None:
        """Reduce the gradients of weights that several stages share."""
        for tied in self.stages.tied:
            owners = sorted({self.homes[c] for c, _ in tied.parts})
            ours = [self.sums.get(t.storage, t) for c, t in tied.parts if c in self.chunks]
            if len(owners) > 1 and ours:
                group = ProcessGroup("embeddings", tuple(owners))
                self._emit(self.draft.collective("all_reduce", group, ours[0], ours[0], self.output[-1].op))

    def _update(self) -> None:
        """The optimizer, over the stage's own weights."""
        chunks = self.stages.chunks
        own, of_all = (
            {s for c in some for s in (*c.weights, *(g.tensor.storage for g in c.gradients))}
            for some in ([chunks[c] for c in self.chunks], chunks)
        )
        local = {t.gradient: part for t in self.stages.tied for c, part in t.parts if c in self.chunks}
        parts = {part.storage for part in local.values()}
        owned = dict.fromkeys(of_all | {t.gradient for t in self.stages.tied}, False)
        owned |= dict.fromkeys(own | local.keys(), True)
        calls = [self.calls[row] for row in self.stages.update]
        propagate_owners([call.op for call in calls if call.collective is None], owned)
        for call in calls:
            op = restrict_update(call.op, owned) if call.collective is None else call.op
            if op is not None:
                op = with_tensors(op, lambda t: replace(local[t.storage], id=t.id) if t.storage in local else t)
                op = with_tensors(op, lambda t: replace(self.sums.get(t.storage, t), id=t.id))
                op.frees = tuple(storage for storage in op.frees if storage not in parts)
                self._emit(EditedCall(op, call.origin, call.collective))
