"""What follows from an assumed share of elements: a step is sketched with less and with more of them, too.

How many elements pass a mask is unknown in a sketch, and may decide how long the step takes. So a step that rests on
such a share is sketched three times, and each call keeps by how much its work differs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from foretrace.graph.graph import Graph
from foretrace.graph.op import AssumedSize, Op
from foretrace.graph.tables import OpTable

SELECTED = "half of the elements pass a mask of unknown values"
DISTINCT = "half of the elements are distinct"
RETURNED = "a custom operator returns half of the rows that it is given"
SHARES = (SELECTED, DISTINCT, RETURNED)
"""Sizes that follow from unknown values."""
SHARE, LESS, MORE = 0.5, 0.1, 0.9
VARIABLE = "FORETRACE_ASSUME"
"""Environment variable with what to assume instead, as ``train.py:12=0.1,mask=0.3``: what a line reads, the share of
the elements that a mask on a line passes, and the share for all other lines."""
EVERY_MASK, EVERY_NUMBER = "mask", "number"
UNFOLLOWED = "an unknown number becomes a plain one, and where that leads is not known"
DECISIVE = "assumed in the step, and decisive: 1 for a number that leads to other calls"
OTHER = 0.4
"""Another number than the one that is assumed."""
THIS_SHARE = "the range is for this share alone"
BOTH_SHARES = f"the range holds {100 * LESS:.0f} to {100 * MORE:.0f} % of them"
CUBIC = ("mm", "attention", "matmul", "linear", "convolution", "cdist")
"""In the names of calls whose arithmetic grows faster than their tensors."""
LEAST = 1e-3


def with_range_of_shares(graph: Graph, sketched: Callable[[], Graph]) -> Graph:
    """The graph, whose calls say how their work follows from the shares that were assumed; and a caution that does.

    ``sketched`` sketches the same step anew, with the shares that the environment says.
    """
    if any(note.startswith(UNFOLLOWED) for note in graph.notes):
        graph = _with_other_numbers(graph, sketched)
    if not any(share in note for note in graph.notes for share in SHARES):
        return graph
    try:
        less, more = (list(_assuming(f"{EVERY_MASK}={share}", sketched).ops) for share in (LESS, MORE))
    except Exception as error:
        why = f"{THIS_SHARE}, as another can't be sketched ({type(error).__name__})"
        return replace(graph, notes=[note.replace(THIS_SHARE, why) for note in graph.notes])
    ops = list(graph.ops)
    for op, size in zip(ops, _sizes(ops, less, more)):
        op.assumed = size
    few, many = sorted((len(less), len(more)))
    calls = f" and {few:,} to {many:,} calls" if few < many else ""
    notes = [note.replace(THIS_SHARE, f"{BOTH_SHARES}{calls}") for note in graph.notes]
    return replace(graph, ops=OpTable.of(ops), notes=notes)


def _with_other_numbers(graph: Graph, sketched: Callable[[], Graph]) -> Graph:
    """The graph, with a caution where the step makes other calls with other unknown numbers."""
    try:
        other = _assuming(f"{EVERY_NUMBER}={OTHER}", sketched)
        same = [*map(_shapes, graph.ops)] == [*map(_shapes, other.ops)]
    except Exception:
        same = False
    lost, others = ([n for n in graph.notes if n.startswith(UNFOLLOWED) is is_lost] for is_lost in (True, False))
    found = [] if same else [note.replace(UNFOLLOWED, DECISIVE) for note in lost]
    return replace(graph, notes=[*found, *others])


def _shapes(op: Op) -> tuple[object, ...]:
    return op.name, *(tensor.shape for tensor in (*op.tensors, *op.produced))


def _assuming(what: str, sketched: Callable[[], Graph]) -> Graph:
    """The step with something else assumed wherever nothing is specified."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ",".join(filter(None, (what, before)))
    try:
        return sketched()
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _sizes(ops: Sequence[Op], less: Sequence[Op], more: Sequence[Op]) -> Iterable[AssumedSize | None]:
    """For each call how its work, and how often it is made, differ in the other steps; None of one that is the same.

    Where a step makes other calls, all those of a name are taken together.
    """
    names = [op.name for op in ops]
    if all(names == [op.name for op in other] for other in (less, more)):
        yield from (_size(_ratios([a], [b]), _ratios([a], [c]), (1.0, 1.0)) for a, b, c in zip(ops, less, more))
        return
    found: dict[str, AssumedSize | None] = {}
    sides = [_by_name(side) for side in (ops, less, more)]
    for name, own in sides[0].items():
        few, many = (side.get(name, []) for side in sides[1:])
        found[name] = _size(_ratios(own, few), _ratios(own, many), (len(few) / len(own), len(many) / len(own)))
    yield from (found[name] for name in names)


def _by_name(ops: Iterable[Op]) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in ops:
        found.setdefault(op.name, []).append(op)
    return found


def _ratios(ops: Sequence[Op], others: Sequence[Op]) -> list[float]:
    """Work of other calls over that of some: by bytes, and where arithmetic grows faster, by that as well."""
    ways = [_nbytes, _flops] if any(word in ops[0].name for word in CUBIC) else [_nbytes]
    sums = [(sum(map(way, others)), sum(map(way, ops))) for way in ways]
    return [other / own if own else 1.0 for other, own in sums]


def _size(less: list[float], more: list[float], calls: tuple[float, float]) -> AssumedSize | None:
    every = [1.0, *less, *more]
    size = AssumedSize(max(min(every), LEAST), max(every), max(min(1.0, *calls), LEAST), max(1.0, *calls))
    return None if set(size) == {1.0} else size


def _nbytes(op: Op) -> float:
    return float(sum(t.numel * t.itemsize for t in (*op.tensors, *op.produced)))


def _flops(op: Op) -> float:
    """What grows as the arithmetic of a product does: of matrices, the root of their three sizes' product is it."""
    return math.sqrt(math.prod(max(1, t.numel) for t in (*op.tensors[-2:], *op.produced[:1])))
