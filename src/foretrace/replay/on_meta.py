"""Calls on PyTorch's meta device: shapes of results, and nothing computed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from foretrace.graph import Constant, Tensor
from foretrace.graph.tensor import ITEMSIZE
from foretrace.replay.literals import LAYOUTS, MEMORY_FORMATS, Name
from foretrace.replay.plan import Argument, Result


def on_meta(value: Argument, shapes: dict[Name, Tensor]) -> Any:
    """An argument, its tensors on the meta device."""
    if isinstance(value, Name):
        tensor = shapes[value]
        if tensor.dtype not in ITEMSIZE:
            raise ValueError(f"there is no type {tensor.dtype!r}")
        dtype = getattr(torch, tensor.dtype)
        if tensor.stride is None:
            return torch.empty(tensor.shape, dtype=dtype, device="meta")
        return torch.empty_strided(tensor.shape, tensor.stride, dtype=dtype, device="meta")
    if isinstance(value, Constant):
        return _constant(value)
    if isinstance(value, (list, tuple)):
        return [on_meta(item, shapes) for item in value]
    return value


def called(known: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """What an operator makes of arguments.

    >>> called("aten.mm.default", [torch.empty(2, 3, device="meta"), torch.empty(3, 4, device="meta")], {}).shape
    torch.Size([2, 4])
    """
    function: Any = torch.ops
    for word in known.split("."):
        function = getattr(function, word)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says of results that would be resized is a no here
        return function(*args, **kwargs)


def pairs(names: Result | tuple[Result, ...], values: Any) -> Iterator[tuple[Name, Any]]:
    """Each variable with what goes into it."""
    if isinstance(names, tuple):
        yield from pairs(list(names), list(values) if isinstance(values, tuple) else [values])
    elif isinstance(names, list):
        found = values if isinstance(values, (list, tuple)) else [values]
        if len(found) != len(names):
            raise ValueError(f"it would make {len(found)} tensors instead of {len(names)}")
        for name, value in zip(names, found):
            yield from pairs(name, value)
    elif names is not None:
        yield names, values


def _constant(value: Constant) -> Any:
    if value.kind == "device":
        return torch.device("meta")
    if value.kind == "dtype" and value.value in ITEMSIZE:
        return getattr(torch, value.value)
    if value.value in (*LAYOUTS, *MEMORY_FORMATS) and value.kind in ("layout", "memory_format"):
        return getattr(torch, value.value)
    return complex(value.value) if value.kind == "complex" else float(value.value) if value.kind == "float" else None
