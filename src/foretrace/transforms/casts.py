"""Casts that cast nothing any more."""

from __future__ import annotations

from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.transforms.removal import removed
from foretrace.transforms.step import flattened

CAST = "aten::_to_copy"


def without_idle_casts(graph: Graph) -> Graph:
    """The step without casts to the type, the device and the layout that a tensor already has.

    >>> from foretrace.graph import OpTable, Tensor
    >>> x, y, z = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in range(3))
    >>> step = Graph(OpTable.of([Op(CAST, (x,), outputs=(y,)), Op("aten::relu", (y,), outputs=(z,))]))
    >>> [(op.name, op.tensors[0].id) for op in without_idle_casts(step).ops]
    [('aten::relu', 0)]
    """
    graph = flattened(graph)
    return removed(graph, {row for row, op in enumerate(graph.ops) if _is_idle(op)})


def _is_idle(op: Op) -> bool:
    if op.name != CAST or len(op.tensors) != 1 or len(op.produced) != 1:
        return False
    given, made = op.tensors[0], op.produced[0]
    return (given.dtype, given.device, given.layout) == (made.dtype, made.device, made.layout)
