"""More or fewer of the blocks that a model repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from string import digits

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.transforms.linked import Call, Linked
from foretrace.transforms.parallel.blocks import block_of, blocks_of
from foretrace.transforms.repeated import Neighbours
from foretrace.transforms.resize import checked_size
from foretrace.transforms.step import opened

PHASES = ("forward", "backward")
MOST_BLOCKS = 1000
"""Their calls are all written down: more would fill the memory."""


def depth(graph: Graph, blocks: int) -> Graph:
    """The step of a model with so many blocks.

    Blocks are modules that follow each other, make the same calls, and differ in a number in their names. New ones are
    put between two of them, in forward and in backward; they have weights of their own, which the optimizer updates.
    Where there shall be fewer, some are left out, and their neighbours meet.

    Parameters
    ----------
    graph
        A recording or a sketch: the calls have to say which module they are of.
    blocks
        How many.
    """
    checked_size("depth", blocks)
    graph, ops = opened(graph)
    was = len(blocks_of(ops))
    if was < 2:
        raise ForetraceError(f"{graph.title} shows no repeated blocks", "Record it, or sketch it: traces lack modules.")
    if blocks == 1:
        raise ForetraceError("a depth of 1 is no repetition", "The least is 2.")
    if blocks > MOST_BLOCKS:
        raise ForetraceError(f"a depth of {blocks:,} is more than any model has", f"The most is {MOST_BLOCKS:,}.")
    left = blocks - was
    while left:
        pair = _neighbours(graph, abs(left))
        graph = pair.with_more() if left > 0 else pair.with_less()
        left += -pair.blocks if left > 0 else pair.blocks
    if blocks != was:
        graph.notes.append(f"{blocks} blocks instead of {was}")
    return graph


def _neighbours(graph: Graph, most: int) -> Neighbours:
    """Two runs of so many blocks at most that follow each other, call by call the same, in forward and backward."""
    ops = list(graph.ops)
    step, names = Linked(ops), blocks_of(ops)
    forth, back = (_starts(step.calls, names, phase) for phase in PHASES)
    for size in range(min(most, len(names) // 2), 0, -1):
        for first, second in zip(range(len(names)), range(size, len(names) - size + 1)):
            forward = _stretches(step.calls, forth[first], forth[second])
            backward = forward and _stretches(step.calls, back[second + size - 1], back[second - 1])
            if forward and backward:
                renamed = dict(zip(names[second : second + size], _unused(names)))
                return Neighbours(graph, step, forward, backward, renamed)
    raise ForetraceError(
        f"no two blocks of {graph.title} follow each other and call the same", "Its depth can't be set."
    )


def _unused(names: Sequence[str]) -> Iterator[str]:
    """Names for more of some blocks.

    >>> next(_unused(["GPT.blocks.0", "GPT.blocks.1"])), next(_unused(["ViT.layer_8", "ViT.layer_9"]))
    ('GPT.blocks.2', 'ViT.layer_10')
    """
    stem = names[0].rstrip(digits)
    return (f"{stem}{number}" for number in count(max(int(name.removeprefix(stem)) for name in names) + 1))


def _starts(calls: Sequence[Call], names: Sequence[str], phase: str) -> list[int | None]:
    """The place of each block's first call in a phase."""
    block = {module: block_of(module, names) for module in {call.op.module for call in calls}}
    found: dict[int, int] = {}
    for place, call in enumerate(calls):
        if call.op.phase == phase:
            found.setdefault(block[call.op.module], place)
    return [found.get(number) for number in range(len(names))]


def _stretches(calls: Sequence[Call], first: int | None, second: int | None) -> tuple[list[Call], list[Call]] | None:
    """The calls of two runs of blocks, where the second goes on with what the first made, and makes the same."""
    if first is None or second is None or second <= first:
        return None
    one, other = list(calls[first:second]), list(calls[second : 2 * second - first])
    passed = {slot for call in one for slot in call.made}
    meet = any(slot in passed for call in other for slot in call.reads)
    return (one, other) if meet and [*map(_kind, one)] == [*map(_kind, other)] else None


def _kind(call: Call) -> tuple[object, ...]:
    return (call.op.name, *(tensor.shape for tensor in call.made.values()))
