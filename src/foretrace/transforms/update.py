"""Another optimizer: its calls take the place of the ones that were there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from foretrace.graph.errors import ForetraceError
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.fresh import Fresh
from foretrace.transforms.inputs import Given
from foretrace.transforms.linked import Linked
from foretrace.transforms.other_tensors import with_tensors
from foretrace.transforms.step import Row, assembled, opened

MARK = "aten::detach"
"""The call with which a sketched update shows its weights and gradients, before it begins."""


def updated(graph: Graph) -> list[tuple[Tensor, Tensor]]:
    """The weights that a step's optimizer changes, each with its gradient, in its order."""
    return _pairs(*opened(graph))


def _pairs(graph: Graph, ops: list[Op]) -> list[tuple[Tensor, Tensor]]:
    step = Linked(ops)
    weights = {tensor.storage: tensor for tensor in Given(step).weights.values()}
    given = {tensor.storage for tensor in step.inputs.values() if tensor.layout == "strided"}
    shapes = {tensor.shape for tensor in weights.values()}
    changed: dict[int, Tensor] = {}
    gradients: dict[tuple[str, int], Tensor] = {}
    made: set[int] = set()
    for op in ops:
        if op.phase != "optimizer":
            continue
        for tensor in op.tensors:
            if tensor.storage in weights:
                changed.setdefault(tensor.storage, weights[tensor.storage])
            elif tensor.id not in made and tensor.storage not in given and tensor.shape in shapes:
                which = ("tensor", tensor.id) if tensor.storage < 0 else ("storage", tensor.storage)
                gradients.setdefault(which, tensor)
        made.update({tensor.id for tensor in op.produced} - {tensor.id for tensor in op.tensors})
    pairs = list(zip(changed.values(), gradients.values()))
    if not pairs or len(changed) != len(gradients) or any(weight.shape != grad.shape for weight, grad in pairs):
        raise ForetraceError(
            f"{graph.title} does not show which gradient belongs to which weight",
            "Its optimizer can't be changed.",
        )
    return pairs


def with_update(graph: Graph, update: Graph) -> Graph:
    """The step with the calls of another optimizer.

    Parameters
    ----------
    graph
        The step.
    update
        A sketch of the other optimizer's step over the same weights and gradients, in the order of `updated`. Before
        it begins it detaches each weight and its gradient, so that they can be told apart from its state.
    """
    graph, ops = opened(graph)
    pairs = _pairs(graph, ops)
    old = [row for row, op in enumerate(ops) if op.phase == "optimizer"]
    new = _named(list(update.ops), [tensor for pair in pairs for tensor in pair], ops)
    kept = {tensor.storage for row, op in enumerate(ops) if op.phase != "optimizer" for tensor in _all(op)}
    ended = tuple(number for row in old for number in ops[row].frees if number in kept)
    if new:
        new[0].frees = (*ended, *new[0].frees)
    for op in new:
        op.thread, op.stream = ops[old[0]].thread, ops[old[0]].stream
    rows = [Row(op, row) for row, op in enumerate(ops) if op.phase != "optimizer"]
    place = next((number for number, row in enumerate(rows) if row.origin > old[0]), len(rows))
    state = {tensor.storage for row in old for tensor in ops[row].tensors} - kept
    storages = {number: storage for number, storage in graph.storages.items() if number not in state}
    rows[place:place] = [Row(op, -1) for op in new]
    return assembled(replace(graph, storages=storages), rows)


def _named(update: list[Op], ours: list[Tensor], ops: list[Op]) -> list[Op]:
    """The calls of an update over our weights and gradients, all else with numbers that nobody has yet."""
    marks = [op for op in update if op.name == MARK and op.phase != "optimizer"][: len(ours)]
    if len(marks) < len(ours):
        raise ForetraceError("the update does not show its weights", "Detach each weight and its gradient first.")
    tensors = {mark.tensors[0].id: our for mark, our in zip(marks, ours)}
    storages = {mark.tensors[0].storage: our.storage for mark, our in zip(marks, ours) if our.storage >= 0}
    fresh = Fresh(ops)
    next_id, next_storage = fresh.number(), fresh.storage()

    def named(tensor: Tensor) -> Tensor:
        our = tensors.get(tensor.id)
        if our is not None:
            return replace(our, stride=tensor.stride) if our.stride is None else our
        storage = storages.get(tensor.storage, tensor.storage + next_storage) if tensor.storage >= 0 else -1
        return replace(tensor, id=tensor.id + next_id, storage=storage)

    made = []
    for op in update:
        if op.phase == "optimizer":
            new = with_tensors(op, named)
            new.frees = tuple(storages.get(number, number + next_storage) for number in op.frees)
            made.append(new)
    return made


def _all(op: Op) -> Iterable[Tensor]:
    return (*op.tensors, *op.produced)
