"""Calls of PyTorch execution traces completed to what a recording holds; each assumption is noted.

An execution trace reuses tensor ids after free, cuts floats to 6 decimals, and lacks process groups, reduce ops, works
and streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foretrace.graph.calls import enclosing_calls
from foretrace.graph.graph import Collective, Graph
from foretrace.graph.op import Constant, Op, Tensor, Value, with_tensors

COLLECTIVE_ARGUMENTS: dict[str, tuple[str, ...]] = {
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
"""Arguments that collectives take in every release of PyTorch, in order; others come and go."""


def lacks_overloads(ops: Sequence[Op]) -> bool:
    """Whether calls come from an execution trace: a recording names each overload, the default one too.

    >>> lacks_overloads([Op("aten::relu")]), lacks_overloads([Op("aten::relu", overload="default")])
    (True, False)
    """
    return not any(op.overload == "default" for op in ops)


class CompletedTrace:
    """The dispatcher calls of an execution trace as a recording would hold them."""

    def __init__(self, graph: Graph, rows: Sequence[int]) -> None:
        self.groups: dict[str, tuple[int, ...]] = {}
        """Process groups of the collectives, with their members."""
        self.notes: list[str] = []
        self._ids: dict[tuple[object, ...], int] = {}
        self._works = 0
        self._assumed: set[str] = set()
        self._world = tuple(range(graph.world))
        call = enclosing_calls(graph, np.array(rows, np.int32))
        collectives = {int(call[c.op]): c for c in graph.collectives if c.op >= 0 and call[c.op] >= 0}
        self.ops = [self._completed(graph.ops[row], collectives.get(place)) for place, row in enumerate(rows)]
        for op, freed in zip(self.ops, _frees(graph, rows)):
            op.frees = freed
        self.notes += [f"the trace lacks {what}" for what in sorted(self._assumed)]
        if any(isinstance(value, float) for op in self.ops for value in (*op.args, *op.kwargs.values())):
            self.notes.append("the trace cuts numbers to 6 decimals: smaller ones become 0")

    def _completed(self, op: Op, collective: Collective | None) -> Op:
        args, outputs, overload = op.args, op.outputs, op.overload
        if op.name.startswith("c10d::"):
            args, outputs = self._collective(op, collective)
            overload = "default"
        elif op.name == "aten::record_stream":
            args = (*args[:1], Constant("stream", "0"))
            self._assumed.add("the streams of record_stream: each tensor's own is assumed")
        return with_tensors(replace(op, overload=overload, args=args, outputs=outputs), self._with_id)

    def _with_id(self, tensor: Tensor) -> Tensor:
        """The tensor with a unique id: a reused one is another tensor if place in memory, shape or dtype differ."""
        view = (tensor.id, tensor.storage, tensor.offset, tensor.shape, tensor.dtype)
        return replace(tensor, id=self._ids.setdefault(view, len(self._ids)))

    def _collective(self, op: Op, known: Collective | None) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        kinds = COLLECTIVE_ARGUMENTS.get(op.name.removeprefix("c10d::"))
        if kinds is None:
            return op.args, op.outputs
        given = [value for value in op.args if not isinstance(value, Constant)]
        args: list[Value] = []
        for kind in kinds:
            if kind == "group":
                args.append(self._group(known))
            elif kind == "reduction":
                args.append(Constant("reduce_op", "sum"))
                self._assumed.add("the reduce ops of collectives: sum is assumed")
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
            self._assumed.add("the ranks of collectives: all ranks are assumed")
        self.groups[name] = tuple(ranks)
        return Constant("group", name)


def _frees(graph: Graph, rows: Sequence[int]) -> list[tuple[int, ...]]:
    """Storages freed before each call; those freed inside a call are freed before the next one."""
    frees: list[tuple[int, ...]] = []
    pending: tuple[int, ...] = ()
    wanted = set(rows)
    for row in range(len(graph.ops)):
        pending += graph.ops[row].frees
        if row in wanted:
            frees.append(pending)
            pending = ()
    return frees
