"""Which results of a checkpointed block are kept: the choices between recomputing all of it and nothing.

A kept result takes memory until backward has read it, and spares its call's time. Results are kept in the order of the
time that each spares for a byte; of the choices so made for a block those remain that no mix of two others beats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from foretrace.graph.graph import Graph
from foretrace.transforms.blocks import all_repeated_blocks, block_index
from foretrace.transforms.dataflow import Dataflow, SlotCall
from foretrace.transforms.parallel.schedules import accumulation_rounds
from foretrace.transforms.step import editable_step
from foretrace.transforms.weights import written_in_place

BETWEEN = "+"


@dataclass(frozen=True)
class KeptResults:
    """The results of a block that are kept, the bytes that this takes, and the time of what is recomputed."""

    names: tuple[str, ...] | None
    """Calls whose results are kept besides the block's input, as ``mm.2``: its third ``aten::mm``. None where the block
    is not checkpointed: all is kept that backward reads."""
    nbytes: int
    us: float


def named_calls(calls: Sequence[SlotCall]) -> Iterator[tuple[str, SlotCall]]:
    """The calls of a block with a name for each: that of its op, and how many of it came before.

    >>> from foretrace.graph import Op
    >>> [name for name, _ in named_calls(Dataflow([Op("aten::mm"), Op("aten::relu"), Op("aten::mm")]).calls)]
    ['mm.0', 'relu.0', 'mm.1']
    """
    seen: Counter[str] = Counter()
    for call in calls:
        name = call.op.name.removeprefix("aten::")
        yield f"{name}.{seen[name]}", call
        seen[name] += 1


def kept_results(graph: Graph, us: Sequence[float]) -> dict[str, list[KeptResults]]:
    """The choices for each repeated block, from the fewest bytes to the least time.

    ``us`` has the device time of each of the step's calls, in the order of its flat form.
    """
    graph, ops = editable_step(graph)
    step = Dataflow(ops)
    blocks = all_repeated_blocks(ops)
    rows = accumulation_rounds(ops, blocks)[0]  # where gradients are added up, each round frees what it has kept
    calls = [call for call in step.calls if call.row in rows]
    found = {}
    for block in blocks:
        inside = [call for call in calls if block_index(call.op.module, [block]) == 0]
        forward, backward = ([call for call in inside if call.op.phase == phase] for phase in ("forward", "backward"))
        choices = list(_choices(forward, backward, us))
        if choices:
            found[block] = _best(choices)
    return found


def last_needed(forward: Sequence[SlotCall], backward: Sequence[SlotCall]) -> int:
    """The place of the last call of a block whose result its backward reads: recomputing ends there; -1 for none."""
    read = {slot for call in backward for slot in call.reads}
    return max((place for place, call in enumerate(forward) if not read.isdisjoint(call.made)), default=-1)


def _choices(forward: Sequence[SlotCall], backward: Sequence[SlotCall], us: Sequence[float]) -> Iterator[KeptResults]:
    last = last_needed(forward, backward)
    if last < 0:
        return
    named = list(named_calls(forward))[: last + 1]
    read = {slot for call in backward for slot in call.reads}
    new = {t.storage: t.nbytes for call in forward for t in call.made.values() if _is_new(call)}
    saved = {t.storage for call in forward for slot, t in call.made.items() if slot in read} & new.keys()
    size = {name: _new_bytes(call) for name, call in named}
    time = {name: us[call.row] for name, call in named}
    changed = {tensor.storage for call in forward for tensor in written_in_place(call.op)}
    worth = [
        n for n, call in named if size[n] and time[n] and changed.isdisjoint(t.storage for t in call.made.values())
    ]
    worth.sort(key=lambda name: -time[name] / size[name])
    all_kept = sum(new[storage] for storage in saved)
    left, nbytes = sum(time.values()), 0
    yield KeptResults((), 0, left)
    for number, name in enumerate(worth):
        left, nbytes = left - time[name], nbytes + size[name]
        if nbytes < all_kept:
            yield KeptResults(tuple(sorted(worth[: number + 1])), nbytes, left)
    yield KeptResults(None, all_kept, 0.0)


def _is_new(call: SlotCall) -> bool:
    """Whether a call's results are in memory of their own."""
    given = {tensor.storage for tensor in call.op.tensors}
    return all(tensor.storage not in given for tensor in call.made.values())


def _new_bytes(call: SlotCall) -> int:
    return sum({t.storage: t.nbytes for t in call.made.values()}.values()) if _is_new(call) else 0


def _best(choices: Collection[KeptResults]) -> list[KeptResults]:
    """Those that no mix of two others beats: the lower convex hull of time over bytes."""
    found: list[KeptResults] = []
    for one in sorted(choices, key=lambda choice: (choice.nbytes, choice.us)):
        if found and one.us >= found[-1].us:
            continue
        while len(found) > 1 and _slope(found[-2], one) <= _slope(found[-2], found[-1]):
            found.pop()
        found.append(one)
    return found


def _slope(one: KeptResults, other: KeptResults) -> float:
    return (other.us - one.us) / max(other.nbytes - one.nbytes, 1)
