"""A step without some of its calls, and without what backward makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from foretrace.errors import ForetraceError, unknown_name
from foretrace.graph.graph import Graph
from foretrace.graph.op import Op, with_tensors
from foretrace.graph.tensor import FLOATING, Tensor
from foretrace.transforms.composites import Composite
from foretrace.transforms.dataflow import slots_in
from foretrace.transforms.retrace import retraced
from foretrace.transforms.step import EditedCall, assemble, editable_step, flatten


def without(graph: Graph, what: str) -> Graph:
    """The step without the calls of a name.

    Whoever read what they made reads what they were given. What autograd's node of such a call does, in the same
    module, goes too.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    what
        The name of an op, ``"native_dropout"`` or ``"aten::native_dropout"``; with ``@`` only in some modules, by a
        pattern or by how they end: ``"gelu@mlp.1"``.
    """
    graph, ops = editable_step(graph)
    name, _, where = what.partition("@")
    called = [row for row, op in enumerate(ops) if name in (op.name, op.name.partition("::")[2])]
    if not called:
        raise unknown_name("op", name, {op.name for op in ops})
    meant = [row for row in called if not where or in_module(ops[row], where)]
    if not meant:
        raise unknown_name(f"{name} in a module", where, {ops[row].module for row in called})
    made = remove_calls(graph, {*meant, *_backwards(ops, meant)})
    made.notes.append(f"{len(meant)} calls of {name} are taken out")
    return made


def in_module(op: Op, where: str) -> bool:
    """Whether a call is of a module, by a pattern or by how its name ends.

    >>> in_module(Op("aten::gelu", module="GPT.blocks.0.mlp.1"), "mlp.1")
    True
    """
    return fnmatchcase(op.module, where) or op.module.endswith(f".{where}")


def _backwards(ops: Sequence[Op], rows: Sequence[int]) -> set[int]:
    """Rows of what autograd's nodes of some calls do."""
    nodes = {(autograd_node(ops[row].name), ops[row].module) for row in rows}
    found = {row for row, op in enumerate(ops) if (re.sub(r"\d+$", "", op.node), op.module) in nodes}
    # A node also adds what came along another way to what it passes on: that stays.
    return {row for row in found if not ops[row].name.startswith("aten::add")}


def autograd_node(name: str) -> str:
    """What autograd calls the backward of an op.

    >>> autograd_node("aten::native_dropout"), autograd_node("aten::relu_")
    ('NativeDropoutBackward', 'ReluBackward')
    """
    return "".join(word.capitalize() for word in name.partition("::")[2].strip("_").split("_")) + "Backward"


# --- was transforms.removal: Calls taken out of a step: what they were given stands for what they made.


def remove_calls(graph: Graph, rows: Collection[int]) -> Graph:
    """The flat step without some calls; who read their first result reads what they were given of that shape.

    Refuses where a call that stays reads something that nobody makes any more.
    """
    graph = flatten(graph)
    same = _Same()
    gone: dict[int, str] = {}
    kept: list[EditedCall] = []
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
        kept.append(EditedCall(op, row))
    return assemble(graph, kept)


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


# --- was questions.inserting: One more op behind some of a step's: an activation, a dropout, a norm; backward and memory follow.

INSERTS: dict[str, Callable[[Tensor], list[Any]]] = {
    **dict.fromkeys(("relu", "gelu", "silu", "tanh", "sigmoid"), lambda given: []),
    "softmax": lambda given: [-1],
    "dropout": lambda given: [0.1, True],
    "layer_norm": lambda given: [[given.shape[-1]]],
    "rms_norm": lambda given: [[given.shape[-1]]],
}
"""What can be inserted, and what it takes besides a tensor. Norms have no weights."""


def insert(graph: Graph, op: str, after: str) -> Graph:
    """The step with an op behind each call of a name; whoever read what those made reads what the new ones make of it.

    Parameters
    ----------
    graph
        A recording, a sketch, or a trace with the arguments of its calls.
    op
        ``"relu"``, ``"gelu"``, ``"silu"``, ``"tanh"``, ``"sigmoid"``, ``"softmax"``, ``"dropout"``, ``"layer_norm"`` or
        ``"rms_norm"``, the latter two without weights.
    after
        The name of an op, ``"addmm"`` or ``"aten::addmm"``; with ``@`` only in some modules, by a pattern or by how
        they end: ``"addmm@mlp.0"``.
    """
    check_insertable(op)
    count = 0

    def behind(known: Sequence[Composite]) -> list[Composite]:
        nonlocal count
        made = [_behind(one, op) for one in _meant(known, after)]
        count = len(made)
        return made

    made = retraced(graph, f"another {op}", more=behind)
    made.notes.append(f"{op} is called behind {count} call{'s' * (count != 1)} of {after}")
    return made


def check_insertable(op: str) -> str:
    """The name, if that can be inserted.

    >>> check_insertable("gelu")
    'gelu'
    """
    if op not in INSERTS:
        raise ForetraceError(f"nobody can insert {op!r}", f"What can be inserted is {', '.join(INSERTS)}.")
    return op


def _meant(known: Sequence[Composite], after: str) -> list[Composite]:
    name, _, where = after.partition("@")
    ops = [call.op for one in known for call in one.calls]
    called = [one for one in known if any(name in (c.op.name, c.op.name.partition("::")[2]) for c in one.calls)]
    if not called:
        raise unknown_name("op in its forward", name, {op.name for op in ops})
    meant = [one for one in called if not where or in_module(one.calls[0].op, where)]
    if not meant:
        raise unknown_name(f"{name} in a module", where, {one.calls[0].op.module for one in called})
    return meant


def _behind(one: Composite, op: str) -> Composite:
    slots = list(slots_in(one.makes[:1]))
    tensors = {slot: tensor for call in one.calls for slot, tensor in call.made.items()}
    made = tensors.get(slots[0]) if len(slots) == 1 else None
    last = one.calls[-1]
    if made is None or made.dtype not in FLOATING or not made.shape:
        raise ForetraceError(
            f"call {last.row}, {last.op.name}, makes nothing new that {op} could be called on",
            "Name an op that makes one tensor of numbers with a fraction.",
        )
    return Composite(op, one.calls, [one.makes[0], *INSERTS[op](made)], [one.makes[0]])
