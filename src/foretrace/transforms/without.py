"""A step without some of its calls, and without what backward makes of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from foretrace.graph.graph import Graph
from foretrace.graph.op import Op
from foretrace.transforms.names import unknown
from foretrace.transforms.removal import removed
from foretrace.transforms.step import opened


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
    graph, ops = opened(graph)
    name, _, where = what.partition("@")
    called = [row for row, op in enumerate(ops) if name in (op.name, op.name.partition("::")[2])]
    if not called:
        raise unknown("op", name, {op.name for op in ops})
    meant = [row for row in called if not where or is_in(ops[row], where)]
    if not meant:
        raise unknown(f"{name} in a module", where, {ops[row].module for row in called})
    made = removed(graph, {*meant, *_backwards(ops, meant)})
    made.notes.append(f"{len(meant)} calls of {name} are taken out")
    return made


def is_in(op: Op, where: str) -> bool:
    """Whether a call is of a module, by a pattern or by how its name ends.

    >>> is_in(Op("aten::gelu", module="GPT.blocks.0.mlp.1"), "mlp.1")
    True
    """
    return fnmatchcase(op.module, where) or op.module.endswith(f".{where}")


def _backwards(ops: Sequence[Op], rows: Sequence[int]) -> set[int]:
    """Rows of what autograd's nodes of some calls do."""
    nodes = {(node_name(ops[row].name), ops[row].module) for row in rows}
    found = {row for row, op in enumerate(ops) if (re.sub(r"\d+$", "", op.node), op.module) in nodes}
    # A node also adds what came along another way to what it passes on: that stays.
    return {row for row in found if not ops[row].name.startswith("aten::add")}


def node_name(name: str) -> str:
    """What autograd calls the backward of an op.

    >>> node_name("aten::native_dropout"), node_name("aten::relu_")
    ('NativeDropoutBackward', 'ReluBackward')
    """
    return "".join(word.capitalize() for word in name.partition("::")[2].strip("_").split("_")) + "Backward"
