"""Compiled kernels, which launch device work without being dispatcher calls: an execution trace knows their tensors."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from foretrace.formats.join import match_ops
from foretrace.graph import Graph, Op, Tensor, Value


def described(launchers: Sequence[Op], structure: Graph, trace: Graph) -> list[Op]:
    """The launchers with the arguments of those of the same name, in order, in an execution trace.

    The trace counts storages in its own way: those that calls of the structure use as well get their numbers there,
    so that it is known what a kernel finds in the cache.
    """
    wanted = {op.name for op in launchers}
    known: defaultdict[str, deque[Op]] = defaultdict(deque)
    for row, code in enumerate(trace.ops.name):
        if trace.ops.names[code] in wanted:
            known[trace.ops.names[code]].append(trace.ops[row])
    number = _renumbered(structure, trace)
    return [_told(op, known[op.name].popleft(), number) if known[op.name] else op for op in launchers]


def _renumbered(structure: Graph, trace: Graph) -> Callable[[int], int]:
    """From the trace's numbers of storages to the structure's; what only the trace has is counted after those."""
    numbers: dict[int, int] = {-1: -1}
    rows = match_ops(structure.ops, trace.ops).tolist()
    for mine, row in zip(structure.ops, rows):
        if row >= 0:
            pairs = zip([*mine.tensors, *mine.produced], [*(theirs := trace.ops[row]).tensors, *theirs.produced])
            numbers |= {there.storage: here.storage for here, there in pairs if here.shape == there.shape}
    fresh = count(max(structure.storages, default=-1) + 1)

    def number(storage: int) -> int:
        if storage not in numbers:
            numbers[storage] = next(fresh)
        return numbers[storage]

    return number


def _told(op: Op, found: Op, number: Callable[[int], int]) -> Op:
    def moved(value: Value) -> Value:
        if isinstance(value, Tensor):
            return replace(value, id=-1, storage=number(value.storage))
        return [moved(item) for item in value] if isinstance(value, list) else value

    args, outputs = (tuple(moved(value) for value in values) for values in (found.args, found.outputs))
    return replace(op, args=args, kwargs=found.kwargs, outputs=outputs)
