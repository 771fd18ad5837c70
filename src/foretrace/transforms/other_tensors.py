"""Calls over other tensors than they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor


def change_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A value with something else for each tensor in it, however deep.

    >>> change_tensors({"given": [Tensor((8,), "float32"), 2]}, lambda tensor: tensor.shape)
    {'given': [(8,), 2]}
    """
    kind = type(value)  # a constant is a tuple too, but not of that type
    if kind is Tensor:
        return change(value)
    if kind is list:
        return [change_tensors(item, change) for item in value]
    if kind is tuple:
        return tuple([change_tensors(item, change) for item in value])
    if kind is dict:
        return {key: change_tensors(item, change) for key, item in value.items()}
    return value


def with_tensors(op: Op, change: Callable[[Tensor], Tensor]) -> Op:
    """A copy of a call, with another tensor for each that it takes or gives.

    >>> relu = Op("aten::relu", (Tensor((8,), "float32"),))
    >>> with_tensors(relu, lambda tensor: Tensor((4,), tensor.dtype)).tensors[0].shape
    (4,)
    """
    changed = op.__copy__()
    changed.args = change_tensors(op.args, change)
    changed.kwargs = change_tensors(op.kwargs, change) if op.kwargs else op.kwargs
    changed.outputs = change_tensors(op.outputs, change)
    return changed
