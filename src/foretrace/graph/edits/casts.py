"""Casts that cast nothing any more."""

from __future__ import annotations

from dataclasses import replace

from foretrace.graph.edits.linked import slotted
from foretrace.graph.edits.step import Row, assembled, flattened
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor

CAST = "aten::_to_copy"


def without_idle_casts(graph: Graph) -> Graph:
    """The step without casts to the type, the device and the layout that a tensor already has.

    >>> from foretrace.graph import OpTable
    >>> x, y, z = (Tensor((4,), "float32", "cpu", (1,), id=number, storage=number) for number in range(3))
    >>> step = Graph(OpTable.of([Op(CAST, (x,), outputs=(y,)), Op("aten::relu", (y,), outputs=(z,))]))
    >>> [(op.name, op.tensors[0].id) for op in without_idle_casts(step).ops]
    [('aten::relu', 0)]
    """
    graph = flattened(graph)
    same = _Same()
    rows: list[Row] = []
    entered = 0
    freed: tuple[int, ...] = ()
    for row, op in enumerate(graph.ops):
        freed += same.freed(op.frees)
        if _is_idle(op):
            same.join(op.tensors[0], op.produced[0])
            entered += op.entered
            continue
        op.frees, freed = freed, ()
        op.entered, entered = op.entered + entered, 0
        op.args, op.outputs = tuple(slotted(list(op.args), same.of)), tuple(slotted(list(op.outputs), same.of))
        op.kwargs = {key: slotted(value, same.of) for key, value in op.kwargs.items()}
        rows.append(Row(op, row))
    return assembled(graph, rows)


def _is_idle(op: Op) -> bool:
    if op.name != CAST or len(op.tensors) != 1 or len(op.produced) != 1:
        return False
    given, made = op.tensors[0], op.produced[0]
    return (given.dtype, given.device, given.layout) == (made.dtype, made.device, made.layout)


class _Same:
    """Tensors that stand for others, and how many still need the storage that they share."""

    def __init__(self) -> None:
        self._tensor: dict[int, Tensor] = {}
        self._storage: dict[int, int] = {}
        self._users: dict[int, set[int]] = {}

    def join(self, given: Tensor, made: Tensor) -> None:
        root = self.of(given)
        self._tensor[made.id] = root
        if made.storage >= 0:
            self._storage[made.storage] = root.storage
            self._users.setdefault(root.storage, {root.storage}).add(made.storage)

    def of(self, tensor: Tensor) -> Tensor:
        known = self._tensor.get(tensor.id)
        if known is not None and known.shape == tensor.shape:
            return known
        storage = self._storage.get(tensor.storage)
        return tensor if storage is None else replace(tensor, storage=storage)

    def freed(self, storages: tuple[int, ...]) -> tuple[int, ...]:
        """Storages that nobody needs any more."""
        ended = []
        for storage in storages:
            root = self._storage.get(storage, storage)
            users = self._users.get(root)
            if users is None:
                ended.append(root)
                continue
            users.discard(storage)
            if not users:
                ended.append(root)
        return tuple(ended)
