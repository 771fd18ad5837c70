"""Calls of others' traces, as a recording would hold them: what the trace lost is filled in, and noted.

PyTorch's execution trace uses the numbers of tensors again once they are free, cuts numbers to 6 decimals, and says
nothing of process groups, reductions, works and streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foretrace.graph.calls import owner
from foretrace.graph.graph import Collective, Graph
from foretrace.graph.op import Constant, Op, Value
from foretrace.graph.tensor import Tensor

COLLECTIVES: dict[str, tuple[str, ...]] = {
    "allreduce_": ("tensors", "group", "reduction", "nothing"),
    "allreduce_coalesced_": ("tensors", "group", "reduction"),
    "broadcast_": ("tensors", "group", "root", "number"),
    "reduce_": ("tensors", "group", "reduction", "root", "number"),
    "allgather_": ("tensors", "tensors", "group"),
    "_allgather_base_": ("tensors", "tensors", "group"),
    "allgather_into_tensor_coalesced_": ("tensors", "tensors", "group"),
    "reduce_scatter_": ("tensors", "tensors", "group", "reduction"),
    "_reduce_scatter_base_": ("tensors", "tensors", "group", "reduction"),
    "reduce_scatter_tensor_coalesced_": ("tensors", "tensors", "group", "reduction"),
    "alltoall_": ("tensors", "tensors", "group"),
    "alltoall_base_": ("tensors", "tensors", "group", "numbers", "numbers"),
    "gather_": ("tensors", "tensors", "group", "root"),
    "scatter_": ("tensors", "tensors", "group", "root"),
    "barrier": ("tensors", "group", "numbers"),
    "send": ("tensors", "group", "number", "number"),
    "recv_": ("tensors", "group", "number", "number"),
}
"""Arguments that every release of PyTorch gives its collectives, in their order; others come and go."""


def is_foreign(ops: Sequence[Op]) -> bool:
    """Whether calls come from a trace of PyTorch's own: a recording names each overload, the default one too.

    >>> is_foreign([Op("aten::relu")]), is_foreign([Op("aten::relu", overload="default")])
    (True, False)
    """
    return not any(op.overload == "default" for op in ops)


class Tidied:
    """The calls of a foreign trace as a recording would have them.

    Parameters
    ----------
    graph
        The trace.
    rows
        Its dispatcher calls.
    """

    def __init__(self, graph: Graph, rows: Sequence[int]) -> None:
        self.groups: dict[str, tuple[int, ...]] = {}
        """Process groups that collectives name, with their members."""
        self.notes: list[str] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._works = 0
        self._assumed: set[str] = set()
        self._world = tuple(range(graph.world))
        collectives = _by_call(graph, rows)
        frees = _frees(graph, rows)
        self.ops = [self._tidy(graph.ops[row], collectives.get(place)) for place, row in enumerate(rows)]
        for op, ended in zip(self.ops, frees):
            op.frees = ended
        self.notes += [f"the trace does not say {what}" for what in sorted(self._assumed)]
        if any(_has_float(op) for op in self.ops):
            self.notes.append("the trace cuts numbers to 6 decimals: smaller ones are 0")

    def _tidy(self, op: Op, collective: Collective | None) -> Op:
        args, outputs, overload = op.args, op.outputs, op.overload
        if op.name.startswith("c10d::"):
            args, outputs = self._collective(op, collective)
            overload = "default"
        elif op.name == "aten::record_stream":
            args = (*args[:1], Constant("stream", "0"))
            self._assumed.add("which stream a tensor is used on: its own is taken")
        kwargs = {key: self._renumbered(value) for key, value in op.kwargs.items()}
        return replace(
            op,
            overload=overload,
            args=tuple(self._renumbered(value) for value in args),
            outputs=tuple(self._renumbered(value) for value in outputs),
            kwargs=kwargs,
        )

    def _renumbered(self, value: Value) -> Value:
        """The value, with a number for each tensor that no other has."""
        if isinstance(value, Tensor):
            # A number that is used again stands for another tensor if it lies elsewhere, or looks otherwise.
            seen = (value.id, value.storage, value.offset, value.shape, value.dtype)
            return replace(value, id=self._numbers.setdefault(seen, len(self._numbers)))
        if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
            return [self._renumbered(item) for item in value]
        return value

    def _collective(self, op: Op, known: Collective | None) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        kinds = COLLECTIVES.get(op.name.removeprefix("c10d::"))
        if kinds is None:
            return op.args, op.outputs
        given = [value for value in op.args if not isinstance(value, Constant)]
        args: list[Value] = []
        for kind in kinds:
            if kind == "group":
                args.append(self._group(known))
            elif kind == "reduction":
                args.append(Constant("reduce_op", "sum"))
                self._assumed.add("which reduction a collective does: a sum is taken")
            elif kind == "nothing":
                args.append(None)
            else:
                args.append(given.pop(0) if given else 0)
        work = Constant("work", str(self._works))
        self._works += 1
        return tuple(args), (*(value for value in op.outputs if not isinstance(value, Constant)), work)

    def _group(self, known: Collective | None) -> Constant:
        name = known.group if known else "all"
        ranks = known.ranks if known and known.ranks else self._world
        if not (known and known.ranks):
            self._assumed.add("which ranks a collective joins: all are taken")
        self.groups[name] = tuple(ranks)
        return Constant("group", name)


def _by_call(graph: Graph, rows: Sequence[int]) -> dict[int, Collective]:
    """The collective that each call does, by the place of the call."""
    place = owner(graph, np.array(rows, np.int32))
    return {int(place[c.op]): c for c in graph.collectives if c.op >= 0 and place[c.op] >= 0}


def _frees(graph: Graph, rows: Sequence[int]) -> list[tuple[int, ...]]:
    """Storages that end before each call; what ended inside a call ends before the next one."""
    frees: list[tuple[int, ...]] = []
    pending: tuple[int, ...] = ()
    wanted = set(rows)
    for row in range(len(graph.ops)):
        pending += graph.ops[row].frees
        if row in wanted:
            frees.append(pending)
            pending = ()
    return frees


def _has_float(op: Op) -> bool:
    return any(isinstance(value, float) for value in (*op.args, *op.kwargs.values()))
