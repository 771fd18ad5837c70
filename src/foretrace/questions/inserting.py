"""One more op behind some of a step's: an activation, a dropout, a norm; backward and memory follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foretrace.graph import ForetraceError, Graph, Tensor
from foretrace.questions.retracing import retraced
from foretrace.transforms.composites import Composite
from foretrace.transforms.linked import slots_in
from foretrace.transforms.names import unknown
from foretrace.transforms.precision import FLOATING
from foretrace.transforms.without import is_in

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
    insertable(op)
    count = 0

    def behind(known: Sequence[Composite]) -> list[Composite]:
        nonlocal count
        made = [_behind(one, op) for one in _meant(known, after)]
        count = len(made)
        return made

    made = retraced(graph, f"another {op}", more=behind)
    made.notes.append(f"{op} is called behind {count} call{'s' * (count != 1)} of {after}")
    return made


def insertable(op: str) -> str:
    """The name, if that can be inserted.

    >>> insertable("gelu")
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
        raise unknown("op in its forward", name, {op.name for op in ops})
    meant = [one for one in called if not where or is_in(one.calls[0].op, where)]
    if not meant:
        raise unknown(f"{name} in a module", where, {one.calls[0].op.module for one in called})
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
