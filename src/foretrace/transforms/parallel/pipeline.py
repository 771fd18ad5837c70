"""Pipeline parallel: each rank has some of the blocks, and the parts of a batch go from one to the next.

A stage receives what its first block reads, does its forward, sends it on; in backward the gradients come the other
way. Gradients are added up over the parts of the batch; the optimizer changes the stage's own weights. A weight that
the first and the last stage share has its gradients summed between the two, as Megatron does with embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foretrace.graph import Graph, Job, Tensor
from foretrace.graph.op import RESIZE
from foretrace.transforms.other_tensors import with_tensors
from foretrace.transforms.parallel.batches import part_of_batch
from foretrace.transforms.parallel.draft import Draft, Group, Line, called, lines_of
from foretrace.transforms.parallel.schedules import check, turns
from foretrace.transforms.parallel.stages import Chunk, Stages, stages_of
from foretrace.transforms.parallel.updates import only, spread


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
    draft = lines_of(graph, "pipeline parallel")
    lines = of_one_part(draft, draft.lines, microbatches)
    staged = pipelined(draft, lines, tuple(range(stages)), microbatches, schedule, chunks)
    note = told(stages, microbatches, schedule, chunks)
    return Job([draft.graph_of(lines, rank, stages, note) for rank, lines in enumerate(staged)], graph.source)


def told(stages: int, microbatches: int, schedule: str, chunks: int) -> str:
    """What the reader should know of it.

    >>> told(1, 4, "1f1b", 1)
    'adding up gradients over 4 microbatches was not in the step that was given'
    """
    if stages == 1:
        return f"adding up gradients over {microbatches} microbatches was not in the step that was given"
    several = f", {chunks} chunks of blocks each" if chunks > 1 else ""
    return (
        f"a pipeline of {stages} stages ({schedule}{several}) over {microbatches} microbatches was not in the step "
        "that was given"
    )


def of_one_part(draft: Draft, lines: Sequence[Line], microbatches: int) -> list[Line]:
    """The lines of a step on one of the parts of its batch."""
    part = part_of_batch([line.op for line in lines], microbatches, draft.graph.source)
    return [replace(line, op=op) for line, op in zip(lines, part)]


def pipelined(
    draft: Draft, lines: Sequence[Line], ranks: tuple[int, ...], microbatches: int, schedule: str, chunks: int
) -> list[list[Line]]:
    """The lines of each stage of a step, from those on one part of its batch. ``ranks`` are the stages', in order."""
    check(schedule, len(ranks), microbatches, chunks)
    cut = stages_of(lines, len(ranks) * chunks, draft.graph.source)
    apart = draft.reserve(microbatches)
    return [
        _Stage(draft, lines, cut, ranks, stage, apart).written(turns(schedule, stage, len(ranks), microbatches, chunks))
        for stage in range(len(ranks))
    ]


class _Stage:
    """What one stage calls."""

    def __init__(
        self, draft: Draft, lines: Sequence[Line], cut: Stages, ranks: tuple[int, ...], stage: int, apart: int
    ) -> None:
        self.draft, self.lines, self.cut, self.ranks, self.stage = draft, lines, cut, ranks, stage
        self.apart = apart
        """So far from each other are the numbers of one part of the batch and the next."""
        self.ours = [c for c in range(len(cut.chunks)) if c % len(ranks) == stage]
        self.skipped = {t.row for t in cut.tied}
        self.dead: list[int] = []
        self.written_lines: list[Line] = []

    def written(self, order: Sequence[Any]) -> list[Line]:
        """All its lines."""
        for turn in order:
            chunk = turn.chunk * len(self.ranks) + self.stage
            self._forward(chunk, turn.microbatch) if turn.forward else self._backward(chunk, turn.microbatch)
        self._share_tied()
        self._update()
        return self.written_lines

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
        group = Group(f"{'forward' if forward else 'backward'} to chunk {target}", ends)
        ours = self.cut.chunks[source if kind == "send" else target]
        rows = ours.forward if forward else ours.backward
        like = self.lines[rows[-1] if kind == "send" else rows[0]].op
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
            line = self.lines[row]
            op = with_tensors(line.op, numbered) if part else line.op.__copy__()
            op.frees = ()
            if op.name == RESIZE:
                op.args = (op.args[0], self._storage(op.args[1], part), *op.args[2:])
            place = line.row if not part else -1
            said = replace(line.collective) if line.collective else None
            self._emit(Line(op, place, said))
            self.dead += [s + part * self.apart for s in chunk.last_touch.get(row, ())]
            done = []
            for whole in ready.get(row, ()):
                mine = self._numbered(whole, part)
                add = called("aten::add_", (whole, mine), (whole,), op)
                add.overload, add.node = "Tensor", "torch::autograd::AccumulateGrad"
                self._emit(Line(add))
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

    def _emit(self, line: Line) -> None:
        if self.dead:
            line.op.frees = (*line.op.frees, *self.dead)
            self.dead = []
        self.written_lines.append(line)

    def _share_tied(self) -> None:
        for tied in self.cut.tied:
            owners = sorted({self.ranks[c % len(self.ranks)] for c, _ in tied.parts})
            mine = [t for c, t in tied.parts if c in self.ours]
            if len(owners) > 1 and mine:
                group = Group("embeddings", tuple(owners))
                like = self.written_lines[-1].op
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
        lines = [self.lines[row] for row in self.cut.update]
        spread([line.op for line in lines if line.collective is None], owned)
        for line in lines:
            kept = only(line.op, owned) if line.collective is None else line.op
            if kept is not None:
                kept = with_tensors(kept, lambda t: replace(local[t.storage], id=t.id) if t.storage in local else t)
                self._emit(Line(kept, line.row, line.collective))
