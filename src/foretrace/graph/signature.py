"""What tells calls apart whose times may differ: a step makes most of its calls many times over."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from foretrace.graph.op import Op, Value
from foretrace.graph.tensor import Tensor

ALIGNMENT = 128
"""Elements: where a tensor begins in its storage matters up to this."""


def signature(op: Op) -> Hashable:
    """Equal for calls that may be expected to take the same time.

    They call the same op with the same arguments, where of a tensor only its shape, type and layout count, and the same
    arguments share a storage.

    >>> here, there = Tensor((8, 8), "float32", storage=1), Tensor((8, 8), "float32", storage=2)
    >>> product = signature(Op("aten::mm", (here, there)))
    >>> product == signature(Op("aten::mm", (there, here))), product == signature(Op("aten::mm", (here, here)))
    (True, False)
    """
    parts: list[Hashable] = [op.name, op.overload]
    views: list[Tensor] = []
    _take_apart(op.args, parts, views)
    if op.kwargs:
        _take_apart(op.kwargs.items(), parts, views)
    last = {view.storage: place for place, view in enumerate(views)}
    if len(last) < len(views):
        parts += [(last[view.storage], view.offset) for view in views]
    return tuple(parts)


def _take_apart(values: Iterable[Value], parts: list[Hashable], views: list[Tensor]) -> None:
    """Add what counts of some values, and the tensors among them, however deep."""
    for value in values:
        if isinstance(value, Tensor):
            views.append(value)
            parts += (value.shape, value.stride, value.offset % ALIGNMENT, value.dtype, value.device, value.layout)
        elif isinstance(value, (list, tuple)):
            parts.append(len(value))
            _take_apart(value, parts, views)
        elif isinstance(value, dict):
            parts.append(len(value))
            _take_apart(value.items(), parts, views)
        else:
            parts += (type(value).__name__, value)  # since 1, 1.0 and True are equal
