"""Calls taken out of a step: what they were given stands for what they made."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.other_tensors import with_tensors
from foretrace.transforms.step import Row, assembled, flattened


def removed(graph: Graph, rows: Collection[int]) -> Graph:
    """The flat step without some calls; who read their first result reads what they were given of that shape.

    Refuses where a call that stays reads something that nobody makes any more.
    """
    graph = flattened(graph)
    same = _Same()
    gone: dict[int, str] = {}
    kept: list[Row] = []
    entered = 0
    freed: tuple[int, ...] = ()
    for row, op in enumerate(graph.ops):
        freed += same.freed(op.frees)
        if row in rows:
            gone.update(dict.fromkeys((tensor.id for tensor in _lost(op, same)), op.name))
            entered += op.entered
            continue
        lost = next((gone[tensor.id] for tensor in op.tensors if tensor.id in gone), None)
        if lost is not None:
            raise ForetraceError(
                f"call {row}, {op.name}, reads what {lost} makes, which is taken out", "Take both out, or neither."
            )
        op = with_tensors(op, same.of)
        op.frees, freed = freed, ()
        op.entered, entered = op.entered + entered, 0
        kept.append(Row(op, row))
    return assembled(graph, kept)


def _lost(op: Op, same: _Same) -> list[Tensor]:
    """What a call made that nobody has now; its first result is what it was given of that shape."""
    ours = {tensor.id for tensor in op.tensors}
    made = [tensor for tensor in op.produced if tensor.id not in ours]
    given = next((tensor for tensor in op.tensors if made and tensor.shape == made[0].shape), None)
    if given is None:
        return made
    same.join(given, made[0])
    return made[1:]


class _Same:
    """Tensors that stand for others, and how many still need the storage that they share."""

    def __init__(self) -> None:
        self._tensor: dict[int, Tensor] = {}
        self._storage: dict[int, int] = {}
        self._users: dict[int, set[int]] = {}

    def join(self, given: Tensor, made: Tensor) -> None:
        root = self.of(given)
        self._tensor[made.id] = root
        if made.storage >= 0 and made.storage != root.storage:
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
