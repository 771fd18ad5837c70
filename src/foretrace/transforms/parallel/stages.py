"""Which calls of a step belong to which stage of a pipeline, and what must pass between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.transforms.parallel.blocks import block_of, blocks_of
from foretrace.transforms.parallel.draft import Line
from foretrace.transforms.parallel.splitting import given_before
from foretrace.transforms.parallel.weights import Gradient, Weights, weights_of


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


def stages_of(lines: Sequence[Line], count: int, source: str) -> Stages:
    """Cut a step into so many chunks of equally many blocks.

    Parameters
    ----------
    lines
        The step.
    count
        How many chunks.
    source
        What to call the step in messages.
    """
    ops = [line.op for line in lines]
    blocks = blocks_of(ops)
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
    found, before = weights_of(ops, source), set(given_before(ops))
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
    block_of_module = {module: block_of(module, blocks) for module in {op.module for op in ops}}
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
