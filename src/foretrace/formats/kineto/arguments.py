"""Arguments of ops in a profiler trace, decoded when an op is read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrace.formats.kineto.decode import UndecodableError, lenient_json
from foretrace.formats.values import SCALAR_TYPES, dtype_name
from foretrace.graph import Constant, Names, Op, Tensor, Value
from foretrace.graph.operators import MEMORY_FORMATS

Signature = tuple[list[Any], list[Any], list[Any], list[Any]]
"""Shapes, types, strides and values of arguments; each list as long as in the trace."""
ENUMERATED = {"aten::_to_copy": ("dtype", SCALAR_TYPES), "aten::clone": ("memory_format", MEMORY_FORMATS)}
"""Calls whose second argument is a number of an enumeration."""
NUMBERS = ("Int", "Double", "Bool", "String")
"""How profilers before PyTorch 1.10 name what is no tensor; the dtypes of tensors have their names in C++."""


@dataclass
class Arguments:
    """Creates ops with their arguments from undecoded lists: an op table's ``detail``."""

    names: Names
    name: NDArray[np.int64]
    signature: NDArray[np.int64]
    signatures: Sequence[bytes]

    def __call__(self, row: int) -> Op:
        """The op of a source row."""
        name = self.names[self.name[row]]
        return with_enumerations(Op(name, tuple(values(decoded(self.signatures[self.signature[row]])))))


def with_enumerations(op: Op) -> Op:
    """A copy with names of dtypes and memory formats, for which a profiler writes numbers.

    >>> with_enumerations(Op("aten::_to_copy", (Tensor((8,), "float32"), 15, None))).kwargs
    {'dtype': Constant(kind='dtype', value='bfloat16')}
    """
    name, known = ENUMERATED.get(op.name, ("", ()))
    number = op.args[1] if len(op.args) > 1 else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(known):
        return op
    return replace(op, args=op.args[:1], kwargs={name: Constant(name, known[number])})


def decoded(signature: bytes) -> Signature:
    """The four lists of a signature; empty ones for what is not a list.

    >>> decoded(b'[[2, 3]],["float"],[],[""]')
    ([[2, 3]], ['float'], [], [''])
    """
    dims, types, strides, concrete = (part if isinstance(part, list) else [] for part in _lists(signature))
    return dims, types, strides, concrete


def _lists(signature: bytes) -> list[Any]:
    text = b"[" + signature + b"]"
    try:
        return msgspec.json.decode(text, type=list)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        with suppress(UndecodableError):
            return list(lenient_json(text, error))
    return [[], [], [], []]


def values(signature: Signature) -> list[Value]:
    """The arguments of a signature.

    >>> tensor, number, nothing = values(([[2, 3], [], []], ["float", "Scalar", ""], [], ["", "1", ""]))
    >>> tensor.shape, tensor.dtype, number, nothing
    ((2, 3), 'float32', 1, None)
    """
    dims, types, strides, concrete = signature

    def at(items: list[Any], i: int) -> Any:
        return items[i] if i < len(items) else None

    return [_value(kind, at(dims, i), at(strides, i), at(concrete, i), bool(concrete)) for i, kind in enumerate(types)]


def _value(kind: Any, shape: Any, stride: Any, text: Any, has_values: bool) -> Value:
    if isinstance(kind, list):
        shapes = shape if isinstance(shape, list) and len(shape) == len(kind) else [[]] * len(kind)
        return [_tensor(k, s, None) for k, s in zip(kind, shapes)]
    if kind == "TensorList":
        return [_tensor("", s, None) for s in shape] if isinstance(shape, list) else []
    if kind in ("", "Scalar", "ScalarList", "GenericList") or (kind in NUMBERS and not shape):
        if kind and not has_values:
            return Constant("object", kind)
        return _scalar(text) if isinstance(text, str) else None
    if dtype_name(str(kind)) or shape:
        return _tensor(kind, shape, stride)
    return Constant("object", str(kind))


def _tensor(kind: Any, shape: Any, stride: Any) -> Tensor:
    sizes, dtype = _sizes(shape) or (), dtype_name(str(kind)) or str(kind)
    if sizes and stride == []:  # if a trace has strides at all, only sparse tensors have none
        return Tensor(sizes, dtype, layout="sparse_coo")
    return Tensor(sizes, dtype, stride=_sizes(stride) if stride else None)


def _sizes(sizes: Any) -> tuple[int, ...] | None:
    if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes):
        return tuple(sizes)
    return None


_LITERALS: dict[str, Value] = {"": None, "None": None, "True": True, "False": False, "true": True, "false": False}


def _scalar(text: str) -> Value:
    if text in _LITERALS:
        return _LITERALS[text]
    if text in ("inf", "-inf", "nan"):
        return Constant("float", text)
    if text.startswith("[") and text.endswith("]"):
        inner = text[1:-1].strip()
        return [_scalar(item.strip()) for item in inner.split(",")] if inner else []
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text.strip('"')
