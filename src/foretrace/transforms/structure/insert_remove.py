"""Insert ops after others, or remove them, with what backward makes of that."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import FLOATING, Op, Tensor, with_tensors
from foretrace.transforms.blocks import is_named
from foretrace.transforms.composites import Composite
from foretrace.transforms.dataflow import slots_in
from foretrace.transforms.retrace import retrace
from foretrace.transforms.step import EditedCall, assemble, editable_step, flatten

INSERTABLE: dict[str, Callable[[Tensor], list[Any]]] = {
    **dict.fromkeys(("relu", "gelu", "silu", "tanh", "sigmoid"), lambda given: []),
    "softmax": lambda given: [-1],
    "dropout": lambda given: [0.1, True],
    "layer_norm": lambda given: [[given.shape[-1]]],
    "rms_norm": lambda given: [[given.shape[-1]]],
}
"""Ops that can be inserted, and their arguments after the tensor. Norms have no weights."""


def insert(graph: Graph, op: str, after: str) -> Graph:
    """The step with an op inserted after each call of a name; readers of that call read the new op's result.

    ``op`` is one of `INSERTABLE`. ``after`` is the name of an op, ``"addmm"`` or ``"aten::addmm"``; with ``@`` only in
    some modules, by a pattern or by the end of their names: ``"addmm@mlp.0"``.
    """
    check_insertable(op)
    new: list[Composite] = []

    def inserted(known: Sequence[Composite]) -> list[Composite]:
        candidates = [[call.op for call in one.calls] for one in known]
        new.extend(_composite_after(known[place], op) for place in _selected(candidates, after, "op in its forward"))
        return new

    made = retrace(graph, f"inserting {op}", inserted=inserted)
    made.notes.append(f"{op} is inserted after {len(new)} call{'s' * (len(new) != 1)} of {after}")
    return made


def check_insertable(op: str) -> str:
    """The name; raises if it can't be inserted."""
    if op not in INSERTABLE:
        raise ForetraceError(f"{op!r} can't be inserted", f"These can: {', '.join(INSERTABLE)}.")
    return op


def _selected(candidates: Sequence[Sequence[Op]], wanted: str, what: str = "op") -> list[int]:
    """Positions of the candidates, each of some calls, that ``name`` or ``name@module`` means."""
    name, _, where = wanted.partition("@")
    called = [
        place
        for place, ops in enumerate(candidates)
        if any(name in (op.name, op.name.partition("::")[2]) for op in ops)
    ]
    if not called:
        raise unknown_name(what, name, {op.name for ops in candidates for op in ops})
    selected = [place for place in called if not where or is_named(candidates[place][0].module, where)]
    if not selected:
        raise unknown_name(f"{name} in a module", where, {candidates[place][0].module for place in called})
    return selected


def _composite_after(one: Composite, op: str) -> Composite:
    slots = list(slots_in(one.makes[:1]))
    tensors = {slot: tensor for call in one.calls for slot, tensor in call.made.items()}
    made = tensors.get(slots[0]) if len(slots) == 1 else None
    last = one.calls[-1]
    if made is None or made.dtype not in FLOATING or not made.shape:
        raise ForetraceError(
            f"{op} can't be applied to the result of call {last.row}, {last.op.name}",
            "Name an op that returns one new floating tensor.",
        )
    return Composite(op, one.calls, [one.makes[0], *INSERTABLE[op](made)], [one.makes[0]])


def without(graph: Graph, what: str) -> Graph:
    """The step without the calls of a name, and without what their autograd nodes call in the same module.

    Readers of a removed call's result read its input instead. ``what`` is the name of an op, ``"native_dropout"`` or
    ``"aten::native_dropout"``; with ``@`` only in some modules, as in `insert`: ``"gelu@mlp.1"``.
    """
    graph, ops = editable_step(graph)
    selected = _selected([[op] for op in ops], what)
    made = remove_calls(graph, {*selected, *_backward_rows(ops, selected)})
    made.notes.append(f"{len(selected)} calls of {what.partition('@')[0]} are removed")
    return made


def _backward_rows(ops: Sequence[Op], rows: Sequence[int]) -> set[int]:
    """Rows that the autograd nodes of some calls make."""
    nodes = {(_autograd_node(ops[row].name), ops[row].module) for row in rows}
    found = {row for row, op in enumerate(ops) if (re.sub(r"\d+$", "", op.node), op.module) in nodes}
    # A node also adds gradients of other paths to the one that it passes on: these additions stay.
    return {row for row in found if not ops[row].name.startswith("aten::add")}


def _autograd_node(name: str) -> str:
    """The name of the autograd node of an op."""
    return "".join(word.capitalize() for word in name.partition("::")[2].strip("_").split("_")) + "Backward"


def remove_calls(graph: Graph, rows: Collection[int]) -> Graph:
    """The flat step without some calls; readers of their first result read their input of that shape.

    Raises if a remaining call reads another result of a removed one.
    """
    graph = flatten(graph)
    aliases = _Aliases()
    removed: dict[int, str] = {}
    calls: list[EditedCall] = []
    entered = 0
    freed: tuple[int, ...] = ()
    for row, op in enumerate(graph.ops):
        freed += aliases.freed(op.frees)
        if row in rows:
            removed.update(dict.fromkeys((tensor.id for tensor in aliases.alias(op)), op.name))
            entered += op.entered
            continue
        lost = next((removed[tensor.id] for tensor in op.tensors if tensor.id in removed), None)
        if lost is not None:
            raise ForetraceError(
                f"call {row}, {op.name}, reads a result of {lost}, which is removed", "Remove both, or neither."
            )
        op = with_tensors(op, aliases.of)
        op.frees, freed = freed, ()
        op.entered, entered = op.entered + entered, 0
        calls.append(EditedCall(op, row))
    return assemble(graph, calls)


class _Aliases:
    """Tensors that stand for results of removed calls, and the storages that still need theirs."""

    def __init__(self) -> None:
        self._tensor: dict[int, Tensor] = {}
        self._storage: dict[int, int] = {}
        self._users: dict[int, set[int]] = {}

    def alias(self, op: Op) -> list[Tensor]:
        """Replace a removed call's first result by its input of that shape; returns the results without replacement."""
        inputs = {tensor.id for tensor in op.tensors}
        made = [tensor for tensor in op.produced if tensor.id not in inputs]
        given = next((tensor for tensor in op.tensors if made and tensor.shape == made[0].shape), None)
        if given is None:
            return made
        root, first = self.of(given), made[0]
        self._tensor[first.id] = root
        if first.storage >= 0 and first.storage != root.storage:
            self._storage[first.storage] = root.storage
            self._users.setdefault(root.storage, {root.storage}).add(first.storage)
        return made[1:]

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor to read in place of another."""
        known = self._tensor.get(tensor.id)
        if known is not None and known.shape == tensor.shape:
            return known
        storage = self._storage.get(tensor.storage)
        return tensor if storage is None else replace(tensor, storage=storage)

    def freed(self, storages: tuple[int, ...]) -> tuple[int, ...]:
        """Storages to free: a shared one with its last user."""
        ended = []
        for storage in storages:
            root = self._storage.get(storage, storage)
            users = self._users.get(root, set())
            users.discard(storage)
            if not users:
                ended.append(root)
        return tuple(ended)
