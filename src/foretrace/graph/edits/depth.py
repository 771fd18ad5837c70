"""More or fewer of the blocks that a model repeats."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.graph.edits.linked import Call, Linked
from foretrace.graph.edits.parallel.blocks import block_of, blocks_of
from foretrace.graph.edits.repeated import Neighbours
from foretrace.graph.edits.resize import sound
from foretrace.graph.edits.step import flattened, needs_arguments
from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph

PHASES = ("forward", "backward")


def depth(graph: Graph, blocks: int) -> Graph:
    """The step of a model with so many blocks.

    Blocks are modules with a number for a name that call the same, one after the other. A new one is put between two of
    them, in forward and in backward, with weights of its own that the optimizer changes too; or one is left out, and
    those beside it meet.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    blocks
        How many.
    """
    sound("depth", blocks)
    graph = flattened(graph)
    ops = list(graph.ops)
    needs_arguments(ops, graph.source)
    was = len(blocks_of(ops))
    if was < 2:
        raise ForetraceError(
            f"{graph.source or 'the step'} shows no repeated blocks", "Record it, or sketch it: traces lack modules."
        )
    if blocks == 1:
        raise ForetraceError("a depth of 1 is no repetition", "The least is 2.")
    for _ in range(abs(blocks - was)):
        pair = _neighbours(graph)
        graph = pair.with_one_more() if blocks > was else pair.with_one_less()
    if blocks != was:
        graph.notes.append(f"{blocks} blocks instead of {was}")
    return graph


def _neighbours(graph: Graph) -> Neighbours:
    """Two blocks that follow each other, call by call the same, in forward and backward."""
    ops = list(graph.ops)
    step, names = Linked(ops), blocks_of(ops)
    starts = {phase: [_start(step.calls, names, number, phase) for number in range(len(names))] for phase in PHASES}
    for first in range(len(names) - 1):
        if all(starts[phase][number] is not None for phase in PHASES for number in (first, first + 1)):
            forward = _stretches(step.calls, starts["forward"][first], starts["forward"][first + 1])
            backward = _stretches(step.calls, starts["backward"][first + 1], starts["backward"][first])
            if forward and backward:
                return Neighbours(graph, step, forward, backward, (names[first + 1], _unused(names)))
    raise ForetraceError(
        f"no two blocks of {graph.source or 'the step'} follow each other and call the same", "Its depth can't be set."
    )


def _unused(names: Sequence[str]) -> str:
    """A name for one more of some blocks.

    >>> _unused(["GPT.blocks.0", "GPT.blocks.1"])
    'GPT.blocks.2'
    """
    return f"{names[0].rpartition('.')[0]}.{max(int(name.rpartition('.')[2]) for name in names) + 1}"


def _start(calls: Sequence[Call], names: Sequence[str], number: int, phase: str) -> int | None:
    inside = (place for place, c in enumerate(calls) if c.op.phase == phase and block_of(c.op.module, names) == number)
    return next(inside, None)


def _stretches(calls: Sequence[Call], first: int | None, second: int | None) -> tuple[list[Call], list[Call]] | None:
    """The calls of two blocks, where the second goes on with what the first made, and makes the same."""
    if first is None or second is None or second <= first:
        return None
    one, other = list(calls[first:second]), list(calls[second : 2 * second - first])
    passed = {slot for call in one for slot in call.made}
    meet = any(slot in passed for call in other for slot in call.reads)
    return (one, other) if meet and [*map(_kind, one)] == [*map(_kind, other)] else None


def _kind(call: Call) -> tuple[object, ...]:
    return (call.op.name, *(tensor.shape for tensor in call.made.values()))
