"""PyTorch's meta device: shapes, strides and dtypes of an op's results without computing them.

Torch is imported at the first call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from foretrace.graph.op import ITEMSIZE, Constant, Tensor
from foretrace.graph.operators import LAYOUTS, MEMORY_FORMATS, operator_path
from foretrace.transforms.dataflow import SlotCall, slots_in, substitute

UNSUPPORTED = ("meta tensors", "Expected a value of type")
"""In error messages of PyTorch that are not about shapes: values are needed, or a trace lost an argument."""

PINNING = ("aten::_pin_memory", "aten::pin_memory")


class MetaTensor(NamedTuple):
    """A result of an op; the offset of a view is relative to that of its base."""

    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    offset: int
    dtype: str


class MetaUnsupportedError(Exception):
    """The meta device does not support an op."""


_known: dict[Hashable, Any] = {}
"""Results of calls: a step repeats most of its own, and a sweep those of others."""


def call_on_meta(name: str, overload: str, args: Any, kwargs: Any) -> Any:
    """The results of an operator on the meta device, in lists as it returns them.

    Raises `MetaUnsupportedError` for an op that it does not support, `ValueError` for arguments that do not fit.

    >>> call_on_meta("aten::mm", "default", (Tensor((2, 3), "float32"), Tensor((3, 4), "float32")), {})
    MetaTensor(shape=(2, 4), stride=(4, 1), offset=0, dtype='float32')
    """
    if name in PINNING:  # a copy, which the meta device refuses to make
        name, overload, args, kwargs = "aten::clone", "default", args[:1], {}
    key = (name, overload, argument_key(args), argument_key(kwargs))
    if key not in _known:
        _known[key] = _run(name, overload, args, kwargs)
    result = _known[key]
    if isinstance(result, Exception):
        raise result
    return result


def meta_results(call: SlotCall, args: Any, kwargs: Any, tensors: Mapping[int, Tensor]) -> dict[int, MetaTensor]:
    """What the meta device makes of a call with some arguments over slots: of each slot that it fills, if it knows."""
    given = substitute(args, tensors.__getitem__), substitute(kwargs, tensors.__getitem__)
    result = call_on_meta(call.op.name, call.op.overload, *given)
    if not call.made:
        return {}
    results = list(result) if isinstance(result, list) and len(call.results) != 1 else [result]
    return {slot: made for slot, made in _pairs(call.results, results) if slot in call.made and made is not None}


def _pairs(slots: Any, values: Any) -> Iterable[tuple[int, Any]]:
    """Each slot with its value."""
    if not isinstance(slots, (list, tuple)):
        yield from ((number, values) for number in slots_in(slots))
        return
    found = values if isinstance(values, list) else [values]
    if len(found) != len(slots):
        raise ValueError(f"it would make {len(found)} tensors instead of {len(slots)}")
    for slot, value in zip(slots, found):
        if hasattr(slot, "number"):
            yield slot.number, value
        elif isinstance(slot, (list, tuple)):
            yield from _pairs(slot, value)


def argument_key(value: Any) -> Hashable:
    """A key that is equal for arguments with equal results on the meta device."""
    if isinstance(value, Tensor):
        return (value.shape, value.stride, value.dtype)
    if isinstance(value, Constant):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(argument_key, value))
    if isinstance(value, dict):
        return tuple((key, argument_key(item)) for key, item in value.items())
    return (type(value), value)


def _run(name: str, overload: str, args: Any, kwargs: Any) -> Any:
    path = operator_path(name, overload)
    if path is None:
        return MetaUnsupportedError(name)
    import torch

    try:
        function = torch_operator(path)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that an output would be resized is an error here
            made = function(*as_torch(args, lambda device: "meta"), **as_torch(kwargs, lambda device: "meta"))
        return _described(made, torch)
    except NotImplementedError:
        return MetaUnsupportedError(name)
    except Exception as error:
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        return MetaUnsupportedError(name) if any(part in text for part in UNSUPPORTED) else ValueError(text)


def torch_operator(path: str) -> Any:
    """The operator at a path like ``aten.relu.default`` below ``torch.ops``; raises AttributeError if there is none."""
    import torch

    function: Any = torch.ops
    for part in path.split("."):
        function = getattr(function, part)
    return function


@cache
def is_pointwise(name: str, overload: str) -> bool:
    """Whether PyTorch tags an operator as pointwise."""
    path = operator_path(name, overload)
    if path is None:
        return False
    import torch

    try:
        return torch.Tag.pointwise in getattr(torch_operator(path), "tags", ())
    except AttributeError:  # an operator of another PyTorch version
        return False


def _described(value: Any, torch: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return None
        dtype = str(value.dtype).removeprefix("torch.")
        return MetaTensor(tuple(value.shape), tuple(value.stride()), int(value.storage_offset()), dtype)
    return [_described(item, torch) for item in value] if isinstance(value, (list, tuple)) else None


def as_torch(value: Any, device: Callable[[str], str]) -> Any:
    """A recorded argument as PyTorch takes it, uninitialized tensors included, on the device for that of the record."""
    if isinstance(value, Tensor):
        return torch_empty(value, device(value.device))
    if isinstance(value, Constant):
        return _constant(value, device)
    if isinstance(value, (list, tuple)):
        return [as_torch(item, device) for item in value]
    return {key: as_torch(item, device) for key, item in value.items()} if isinstance(value, dict) else value


def torch_empty(tensor: Tensor, device: str) -> Any:
    """An uninitialized PyTorch tensor with the shape, strides and dtype of a recorded one."""
    import torch

    if tensor.dtype not in ITEMSIZE:
        raise ValueError(f"unknown dtype {tensor.dtype!r}")
    dtype = getattr(torch, tensor.dtype)
    if tensor.stride is None:
        return torch.empty(tensor.shape, dtype=dtype, device=device)
    return torch.empty_strided(tensor.shape, tensor.stride, dtype=dtype, device=device)


def _constant(value: Constant, device: Callable[[str], str]) -> Any:
    import torch

    if value.kind == "device":
        return torch.device(device(value.value))
    if value.kind == "dtype" and value.value in ITEMSIZE:
        return getattr(torch, value.value)
    if value.value in (*LAYOUTS, *MEMORY_FORMATS) and value.kind in ("layout", "memory_format"):
        return getattr(torch, value.value)
    return complex(value.value) if value.kind == "complex" else float(value.value) if value.kind == "float" else None
