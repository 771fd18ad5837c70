"""Calls on PyTorch's meta device: shapes of results, and nothing computed. Torch is imported once somebody asks."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple

from foretrace.graph.op import Constant
from foretrace.graph.operators import LAYOUTS, MEMORY_FORMATS, operator_path
from foretrace.graph.tensor import ITEMSIZE, Tensor

CAN_NOT_TELL = ("meta tensors", "Expected a value of type")
"""What PyTorch says where shapes are not the problem: it would have to compute, or a trace lost an argument."""


class MetaTensor(NamedTuple):
    """A tensor that a call makes; where a view begins is counted from where its base does."""

    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    offset: int
    dtype: str


class MetaUnsupportedError(Exception):
    """The meta device can't tell what a call makes."""


class MetaDevice:
    """Asks each call once: a step makes most of its calls many times over.

    >>> a, b = Tensor((2, 3), "float32"), Tensor((3, 4), "float32")
    >>> MetaDevice().called("aten::mm", "default", (a, b), {})
    Made(shape=(2, 4), stride=(4, 1), offset=0, dtype='float32')
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    def called(self, name: str, overload: str, args: Any, kwargs: Any) -> Any:
        """What an operator makes of arguments, in lists as it gives it.

        Raises `MetaUnsupportedError` where it can't tell, `ValueError` where the arguments do not fit.
        """
        key = (name, overload, argument_key(args), argument_key(kwargs))
        if key not in self._known:
            self._known[key] = _answer(name, overload, args, kwargs)
        answer = self._known[key]
        if isinstance(answer, Exception):
            raise answer
        return answer


META = MetaDevice()
"""Asked by all edits of a process: what it answered once it never has to compute again."""


def argument_key(value: Any) -> Hashable:
    """Equal for arguments of which the meta device makes the same."""
    if isinstance(value, Tensor):
        return (value.shape, value.stride, value.dtype)
    if isinstance(value, Constant):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(map(argument_key, value))
    if isinstance(value, dict):
        return tuple((key, argument_key(item)) for key, item in value.items())
    return (type(value), value)


def _answer(name: str, overload: str, args: Any, kwargs: Any) -> Any:
    known = operator_path(name, overload)
    if known is None:
        return MetaUnsupportedError(name)
    import torch

    try:
        function = torch_operator(known)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of results that would be resized is a no here
            made = function(*[_on_meta(value, torch) for value in args], **_on_meta(kwargs, torch))
        return _told(made, torch)
    except NotImplementedError:
        return MetaUnsupportedError(name)
    except Exception as error:
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        return MetaUnsupportedError(name) if any(words in text for words in CAN_NOT_TELL) else ValueError(text)


def torch_operator(known: str) -> Any:
    """The operator of PyTorch that is called by a name like ``aten.relu.default``; raises AttributeError for none."""
    import torch

    function: Any = torch.ops
    for word in known.split("."):
        function = getattr(function, word)
    return function


@cache
def is_pointwise(name: str, overload: str) -> bool:
    """Whether PyTorch says of an operator that it goes element by element.

    >>> is_pointwise("aten::gelu", "default"), is_pointwise("aten::mm", "default"), is_pointwise("my::own", "")
    (True, False, False)
    """
    known = operator_path(name, overload)
    if known is None:
        return False
    import torch

    try:
        return torch.Tag.pointwise in getattr(torch_operator(known), "tags", ())
    except AttributeError:  # an operator of another PyTorch
        return False


def _told(value: Any, torch: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return None
        dtype = str(value.dtype).removeprefix("torch.")
        return MetaTensor(tuple(value.shape), tuple(value.stride()), int(value.storage_offset()), dtype)
    return [_told(item, torch) for item in value] if isinstance(value, (list, tuple)) else None


def _on_meta(value: Any, torch: Any) -> Any:
    """An argument, its tensors on the meta device."""
    if isinstance(value, Tensor):
        return torch_empty(value, "meta")
    if isinstance(value, Constant):
        return _constant(value, torch)
    if isinstance(value, (list, tuple)):
        return [_on_meta(item, torch) for item in value]
    return {key: _on_meta(item, torch) for key, item in value.items()} if isinstance(value, dict) else value


def torch_empty(tensor: Tensor, device: str) -> Any:
    """A tensor of PyTorch with another's shape, strides and type, and nothing in it.

    >>> torch_empty(Tensor((2, 3), "bfloat16", stride=(1, 2)), "meta").stride()
    (1, 2)
    """
    import torch

    if tensor.dtype not in ITEMSIZE:
        raise ValueError(f"there is no type {tensor.dtype!r}")
    dtype = getattr(torch, tensor.dtype)
    if tensor.stride is None:
        return torch.empty(tensor.shape, dtype=dtype, device=device)
    return torch.empty_strided(tensor.shape, tensor.stride, dtype=dtype, device=device)


def _constant(value: Constant, torch: Any) -> Any:
    if value.kind == "device":
        return torch.device("meta")
    if value.kind == "dtype" and value.value in ITEMSIZE:
        return getattr(torch, value.value)
    if value.value in (*LAYOUTS, *MEMORY_FORMATS) and value.kind in ("layout", "memory_format"):
        return getattr(torch, value.value)
    return complex(value.value) if value.kind == "complex" else float(value.value) if value.kind == "float" else None
