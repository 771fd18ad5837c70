"""Pipeline parallel: each rank has some of the blocks, and the parts of a batch go from one to the next.

A stage receives what its first block reads, does its forward, sends it on; in backward the gradients come the other
way. Gradients are added up over the parts of the batch; the optimizer changes the stage's own weights. A weight that
the first and the last stage share has its gradients summed between the two, as Megatron does with embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foretrace.graph import ForetraceError, Graph, Job, Op, Tensor
from foretrace.graph.op import RESIZE, with_tensors
from foretrace.transforms.blocks import block_index, repeated_blocks
from foretrace.transforms.draft import Draft, ProcessGroup, call_like, draft_of
from foretrace.transforms.parallel.schedules import check_schedule, microbatch_of, stage_schedule
from foretrace.transforms.parallel.splitting import preexisting_tensors
from foretrace.transforms.step import EditedCall
from foretrace.transforms.weights import Gradient, Weights, propagate_owners, restrict_update, weights_of


def pipeline_parallel(graph: Graph, stages: int, microbatches: int, schedule: str = "1f1b", chunks: int = 1) -> Job:
    """The steps of so many ranks, each with a stage of the model.

    Parameters
    ----------
    graph
        The step of one rank.
    stages
        How many ranks.
    microbatches
        Parts of the step's batch.
    schedule
        ``1f1b``, ``gpipe`` or ``interleaved``.
    chunks
        Groups of blocks on each stage; more than one in ``interleaved`` only.
    """
    draft = draft_of(graph, "pipeline parallel")
    calls = microbatch_calls(draft, draft.calls, microbatches)
    staged = split_stages(draft, calls, tuple(range(stages)), microbatches, schedule, chunks)
    note = pipeline_note(stages, microbatches, schedule, chunks)
    return Job([draft.graph_of(calls, rank, stages, note) for rank, calls in enumerate(staged)], graph.source)


def pipeline_note(stages: int, microbatches: int, schedule: str, chunks: int) -> str:
    """What the reader should know of it.

    >>> pipeline_note(1, 4, "1f1b", 1)
    'adding up gradients over 4 microbatches was not in the step that was given'
    """
    if stages == 1:
        return f"adding up gradients over {microbatches} microbatches was not in the step that was given"
    several = f", {chunks} chunks of blocks each" if chunks > 1 else ""
    return (
        f"a pipeline of {stages} stages ({schedule}{several}) over {microbatches} microbatches was not in the step "
        "that was given"
    )


def microbatch_calls(draft: Draft, calls: Sequence[EditedCall], microbatches: int) -> list[EditedCall]:
    """The calls of a step on one of the parts of its batch."""
    part = microbatch_of([call.op for call in calls], microbatches, draft.graph.source)
    return [replace(call, op=op) for call, op in zip(calls, part)]


def split_stages(
    draft: Draft, calls: Sequence[EditedCall], ranks: tuple[int, ...], microbatches: int, schedule: str, chunks: int
) -> list[list[EditedCall]]:
    """The calls of each stage of a step, from those on one part of its batch. ``ranks`` are the stages', in order."""
    check_schedule(schedule, len(ranks), microbatches, chunks)
    cut = stages_of(calls, len(ranks) * chunks, draft.graph.source)
    apart = draft.reserve(microbatches)
    return [
        _Stage(draft, calls, cut, ranks, stage, apart).written(
            stage_schedule(schedule, stage, len(ranks), microbatches, chunks)
        )
        for stage in range(len(ranks))
    ]


class _Stage:
    """What one stage calls."""

    def __init__(
        self, draft: Draft, calls: Sequence[EditedCall], cut: Stages, ranks: tuple[int, ...], stage: int, apart: int
    ) -> None:
        self.draft, self.calls, self.cut, self.ranks, self.stage = draft, calls, cut, ranks, stage
        self.apart = apart
        """So far from each other are the numbers of one part of the batch and the next."""
        self.ours = [c for c in range(len(cut.chunks)) if c % len(ranks) == stage]
        self.skipped = {t.row for t in cut.tied}
        self.dead: list[int] = []
        self.written_calls: list[EditedCall] = []

    def written(self, order: Sequence[Any]) -> list[EditedCall]:
        """All its calls."""
        for turn in order:
            chunk = turn.chunk * len(self.ranks) + self.stage
            self._forward(chunk, turn.microbatch) if turn.forward else self._backward(chunk, turn.microbatch)
        self._share_tied()
        self._update()
        return self.written_calls

    def _forward(self, chunk: int, part: int) -> None:
        ours, last = self.cut.chunks[chunk], len(self.cut.chunks) - 1
        self._pass("recv", ours.takes if chunk else [], chunk - 1, chunk, part)
        self._call(ours, ours.forward, part)
        self._pass("send", self.cut.chunks[chunk + 1].takes if chunk < last else [], chunk, chunk + 1, part)

    def _backward(self, chunk: int, part: int) -> None:
        ours, last = self.cut.chunks[chunk], len(self.cut.chunks) - 1
        after = self.cut.chunks[chunk + 1].returns if chunk < last else []
        self._pass("recv", after, chunk + 1, chunk, part)
        self._call(ours, ours.backward, part)
        self._pass("send", ours.returns if chunk else [], chunk, chunk - 1, part)

    def _pass(self, kind: str, tensors: Sequence[Tensor], source: int, target: int, part: int) -> None:
        """Send tensors from one chunk to another, or receive them, as part of the stream between just these two."""
        ends = tuple(self.ranks[chunk % len(self.ranks)] for chunk in (source, target))
        if ends[0] == ends[1]:
            return
        forward = source < target
        group = ProcessGroup(f"{'forward' if forward else 'backward'} to chunk {target}", ends)
        ours = self.cut.chunks[source if kind == "send" else target]
        rows = ours.forward if forward else ours.backward
        like = self.calls[rows[-1] if kind == "send" else rows[0]].op
        for tensor in tensors:
            moved = self._numbered(tensor, part)
            self._emit(self.draft.collective(kind, group, moved, moved, like, ends[kind == "send"]))

    def _call(self, chunk: Chunk, rows: Sequence[int], part: int) -> None:
        ready: dict[int, list[Tensor]] = {}
        for gradient in chunk.gradients if part else ():
            ready.setdefault(gradient.ready, []).append(gradient.tensor)

        def numbered(tensor: Tensor) -> Tensor:
            return self._numbered(tensor, part)

        for row in rows:
            if row in self.skipped:
                continue
            call = self.calls[row]
            op = with_tensors(call.op, numbered) if part else call.op.__copy__()
            op.frees = ()
            if op.name == RESIZE:
                op.args = (op.args[0], self._storage(op.args[1], part), *op.args[2:])
            place = call.origin if not part else -1
            said = replace(call.collective) if call.collective else None
            self._emit(EditedCall(op, place, said))
            self.dead += [s + part * self.apart for s in chunk.last_touch.get(row, ())]
            done = []
            for whole in ready.get(row, ()):
                mine = self._numbered(whole, part)
                add = call_like("aten::add_", (whole, mine), (whole,), op)
                add.overload, add.node = "Tensor", "torch::autograd::AccumulateGrad"
                self._emit(EditedCall(add))
                done.append(mine.storage)
            self.dead += dict.fromkeys(done)

    def _numbered(self, tensor: Tensor, part: int) -> Tensor:
        if tensor.storage in self.cut.before or not part:
            return tensor
        t, shift = tensor, part * self.apart
        # As replace() would, several times as fast: there is one for each tensor of each call and part.
        return Tensor(t.shape, t.dtype, t.device, t.stride, t.offset, t.id + shift, t.storage + shift, t.layout)

    def _storage(self, storage: Any, part: int) -> Any:
        return storage + part * self.apart if part and storage not in self.cut.before else storage

    def _emit(self, call: EditedCall) -> None:
        if self.dead:
            call.op.frees = (*call.op.frees, *self.dead)
            self.dead = []
        self.written_calls.append(call)

    def _share_tied(self) -> None:
        for tied in self.cut.tied:
            owners = sorted({self.ranks[c % len(self.ranks)] for c, _ in tied.parts})
            mine = [t for c, t in tied.parts if c in self.ours]
            if len(owners) > 1 and mine:
                group = ProcessGroup("embeddings", tuple(owners))
                like = self.written_calls[-1].op
                self._emit(self.draft.collective("all_reduce", group, mine[0], mine[0], like))

    def _update(self) -> None:
        """The optimizer, over the stage's own weights."""
        gradients = {g.tensor.storage for c in self.ours for g in self.cut.chunks[c].gradients}
        weights = {s for c in self.ours for s in self.cut.chunks[c].weights}
        everybodys = {s for c in self.cut.chunks for s in c.weights}
        theirs = {g.tensor.storage for c in self.cut.chunks for g in c.gradients}
        local = {t.gradient: p for t in self.cut.tied for c, p in t.parts if c in self.ours}
        merged = {t.gradient for t in self.cut.tied}
        owned = dict.fromkeys(everybodys | theirs | merged, False)
        owned |= dict.fromkeys(weights | gradients | local.keys(), True)
        calls = [self.calls[row] for row in self.cut.update]
        propagate_owners([call.op for call in calls if call.collective is None], owned)
        for call in calls:
            kept = restrict_update(call.op, owned) if call.collective is None else call.op
            if kept is not None:
                kept = with_tensors(kept, lambda t: replace(local[t.storage], id=t.id) if t.storage in local else t)
                self._emit(EditedCall(kept, call.origin, call.collective))


# --- was transforms.parallel.stages: Which calls of a step belong to which stage of a pipeline, and what must pass between them.


@dataclass
class Chunk:
    """Some blocks after one another, with what comes before the first and behind the last."""

    forward: list[int] = field(default_factory=list)
    """Rows of its calls."""
    backward: list[int] = field(default_factory=list)
    takes: list[Tensor] = field(default_factory=list)
    """Activations from the chunk before."""
    returns: list[Tensor] = field(default_factory=list)
    """Gradients to the chunk before."""
    gradients: list[Gradient] = field(default_factory=list)
    weights: set[int] = field(default_factory=set)
    last_touch: dict[int, list[int]] = field(default_factory=dict)
    """Storages that nobody needs after a row."""


@dataclass
class Stages:
    """A step cut into chunks, and what belongs to none of them."""

    chunks: list[Chunk]
    update: list[int]
    """Rows of the optimizer, and of what comes behind it."""
    before: set[int]
    """Storages that were there before the step."""
    tied: list[Tied]


@dataclass(frozen=True)
class Tied:
    """A weight that several chunks use: each has a gradient of its own, and they must be summed."""

    gradient: int
    """Storage of the sum, where one rank has the whole model."""
    row: int
    """The call that makes it there."""
    parts: tuple[tuple[int, Tensor], ...]
    """Chunk and gradient."""


def stages_of(calls: Sequence[EditedCall], count: int, source: str) -> Stages:
    """Cut a step into so many chunks of equally many blocks.

    Parameters
    ----------
    calls
        The step.
    count
        How many chunks.
    source
        What to call the step in messages.
    """
    ops = [call.op for call in calls]
    blocks = repeated_blocks(ops)
    if count > 1 and len(blocks) < count:
        named = f": {', '.join(blocks[:3])}, …" if blocks else ""
        raise ForetraceError(
            f"{source or 'the graph'} repeats {len(blocks)} blocks{named}, too few for {count} stages",
            "A stage needs a block at least: give fewer stages, or fewer chunks."
            if blocks
            else "Record it, or sketch it: traces lack modules.",
        )
    if count > 1 and len(blocks) % count:
        raise ForetraceError(
            f"{len(blocks)} blocks ({blocks[0]}, …) can't be divided evenly over {count} stages",
            "Give a number of stages and chunks that divides the blocks.",
        )
    found, before = weights_of(ops, source), set(preexisting_tensors(ops))
    place = _places(ops, blocks, count)
    chunks = [Chunk() for _ in range(count)]
    last = max(row for row, op in enumerate(ops) if op.phase == "backward")
    for row in range(last + 1):
        chunk = chunks[place[row]]
        (chunk.backward if ops[row].phase == "backward" else chunk.forward).append(row)
        if ops[row].phase == "forward":
            chunk.weights |= {t.storage for t in ops[row].tensors} & found.weights.keys()
    tied = _gradients(ops, found, place, chunks)
    _crossings(ops, place, chunks, found, {t.row for t in tied}, before)
    for chunk in chunks:
        _deaths(ops, chunk, before)
    return Stages(chunks, list(range(last + 1, len(ops))), before, tied)


def _places(ops: Sequence[Op], blocks: Sequence[str], count: int) -> list[int]:
    """The chunk of each call: that of its block, else of the block before it; in backward the last one comes first."""
    block_of_module = {module: block_index(module, blocks) for module in {op.module for op in ops}}
    block = [block_of_module[op.module] for op in ops]
    behind = max((row for row, op in enumerate(ops) if op.phase == "forward" and block[row] >= 0), default=len(ops))
    places: list[int] = []
    at, backward = 0, False
    for row, op in enumerate(ops):
        if op.phase == "backward" and not backward:
            at, backward = count - 1, True
        if block[row] >= 0:
            at = block[row] * count // len(blocks)
        elif row > behind and not backward:
            at = count - 1
        places.append(at)
    return places


def _gradients(ops: Sequence[Op], found: Weights, place: Sequence[int], chunks: Sequence[Chunk]) -> list[Tied]:
    """Give each chunk the gradients that it makes; those that several make parts of are told."""
    first, last = _writers(ops)
    tied = []
    for gradient in found.gradients:
        row = first[gradient.tensor.storage]
        merge = ops[row]
        parts = tuple(
            (place[first[t.storage]], t)
            for t in merge.tensors
            if merge.name == "aten::add" and t.shape == gradient.tensor.shape and t.storage in first
        )
        if len({chunk for chunk, _ in parts}) < 2:
            chunks[place[gradient.ready]].gradients.append(gradient)
            continue
        tied.append(Tied(gradient.tensor.storage, row, parts))
        for chunk, part in parts:
            ready = last[part.storage]
            chunks[chunk].gradients.append(Gradient(part, ready, ops[ready].module))
    return tied


def _writers(ops: Sequence[Op]) -> tuple[dict[int, int], dict[int, int]]:
    """For each storage, the first call of backward that makes something of it, and the last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for row, op in enumerate(ops):
        if op.phase == "backward":
            for tensor in op.produced:
                first.setdefault(tensor.storage, row)
                last[tensor.storage] = row
    return first, last


def _crossings(
    ops: Sequence[Op],
    place: Sequence[int],
    chunks: Sequence[Chunk],
    found: Weights,
    merges: set[int],
    before: set[int],
) -> None:
    """What each chunk takes from the one before, and gives back to it. What depends on no weight, each makes itself."""
    learned = set(found.weights)
    made: dict[int, tuple[int, bool]] = {}
    for row in range(max(chunk.backward[-1] for chunk in chunks if chunk.backward) + 1):
        op, here = ops[row], place[row]
        forward = op.phase != "backward"
        if row in merges:
            continue
        for tensor in op.tensors:
            if tensor.storage in before or tensor.storage not in learned or tensor.storage not in made:
                continue
            there, in_forward = made[tensor.storage]
            if in_forward and there < here:
                _add(tensor, (chunks[c].takes for c in range(there + 1, here + 1)))
            elif not in_forward and not forward and there > here:
                _add(tensor, (chunks[c].returns for c in range(here + 1, there + 1)))
        if any(t.storage in learned for t in op.tensors):
            learned |= {t.storage for t in op.produced}
        for tensor in op.produced:
            made.setdefault(tensor.storage, (here, forward))


def _add(tensor: Tensor, lists: Iterable[list[Tensor]]) -> None:
    for tensors in lists:
        if all(tensor.storage != other.storage for other in tensors):
            tensors.append(tensor)


def _deaths(ops: Sequence[Op], chunk: Chunk, before: set[int]) -> None:
    """What a chunk may free after which of its calls: all that it does not keep for the optimizer."""
    kept = before | {g.tensor.storage for g in chunk.gradients}
    last: dict[int, int] = {}
    for row in (*chunk.forward, *chunk.backward):
        last |= {t.storage: row for t in (*ops[row].tensors, *ops[row].produced) if t.storage not in kept}
    for storage, row in last.items():
        chunk.last_touch.setdefault(row, []).append(storage)
