"""Calls as profilers write them: the overload is left out, and arguments by name stand among the others."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch

from foretrace.graph import Constant, ForetraceError, Op, Tensor, Value
from foretrace.graph.operators import operator_path

KINDS: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "number": (int, float),
    "float": (int, float),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
}
"""By what a schema calls a kind of argument: what a trace may hold in its place."""
CONSTANTS = {"dtype": "int", "layout": "int", "memory_format": "int"}
"""What schemas call the kinds of words; numbers that JSON has no way to write are words, too."""


def as_called(op: Op) -> Op:
    """The call with an overload that takes its arguments, and these by position or by name as that one takes them.

    What the trace does not say is left to its default; where there is none, the call can't be made.

    >>> x = Tensor((2, 2), "float32")
    >>> made = as_called(Op("aten::addmm", (x, x, x, 1, 1)))
    >>> made.overload, len(made.args), made.kwargs
    ('default', 3, {'beta': 1, 'alpha': 1})
    >>> as_called(Op("aten::pow", (x, 2))).overload
    'Tensor_Scalar'
    """
    for overload, schema in _schemas(op):
        taken = _taken(op, schema.arguments)
        if taken is not None:
            args, kwargs = taken
            return replace(op, overload=overload, args=args, kwargs=kwargs)
    raise ForetraceError(f"PyTorch {torch.__version__} has no {op.name} that takes what the trace says it was given")


def _schemas(op: Op) -> list[tuple[str, Any]]:
    """The overloads of an operator, but for those that write where they are told: a profiler shows what these call."""
    where = operator_path(op.name, "", namespaces=[op.name.partition("::")[0]])
    try:
        packet = attrgetter(where)(torch.ops) if where else None
    except AttributeError:  # of a library that is not here
        return []
    schemas = [(name, getattr(packet, name)._schema) for name in packet.overloads()] if packet else []
    return [(name, schema) for name, schema in schemas if not any(one.is_out for one in schema.arguments)]


def _taken(op: Op, wanted: list[Any]) -> tuple[tuple[Value, ...], dict[str, Value]] | None:
    """The arguments of a call as an overload takes them, by position and by name; None where it does not."""
    given = {**dict(zip((one.name for one in wanted), op.args)), **op.kwargs}
    said = {one.name: given[one.name] for one in wanted if _is_said(given.get(one.name)) and not _is_device(one)}
    fits = all(_fits(said[one.name], str(one.type)) if one.name in said else _may_be_unsaid(one) for one in wanted)
    if len(op.args) > len(wanted) or not fits:
        return None
    args = tuple(said.get(one.name, one.default_value) for one in wanted if not one.kwarg_only)
    return args, {one.name: said[one.name] for one in wanted if one.kwarg_only and one.name in said}


def _is_said(value: Value) -> bool:
    return value is not None and not (isinstance(value, Constant) and value.kind == "object")


def _is_device(argument: Any) -> bool:
    """Whether it names the device, which is the one at hand."""
    return "Device" in str(argument.type)


def _may_be_unsaid(argument: Any) -> bool:
    return argument.has_default_value() or str(argument.type).startswith("Optional[")


def _fits(value: Value, kind: str) -> bool:
    """Whether an argument is of a kind as schemas write them.

    >>> _fits([1, 2], "Optional[List[int]]"), _fits(0.5, "int"), _fits(Constant("dtype", "float16"), "Optional[int]")
    (True, False, True)
    """
    outer, _, inner = kind.removesuffix("]").partition("[")
    if outer == "Optional":
        return _fits(value, inner)
    if outer == "List":
        return isinstance(value, (list, tuple)) and all(item is None or _fits(item, inner) for item in value)
    if isinstance(value, Constant):
        return kind == CONSTANTS.get(value.kind, "number")
    return isinstance(value, KINDS.get(kind, ()))
