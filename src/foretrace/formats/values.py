"""Arguments and results as PyTorch's execution trace writes them, made into our values.

The trace keeps four lists side by side: values, shapes, types and, since schema 1.1.1, strides. A tensor's value is
``[tensor id, storage id, offset, elements, bytes of one, device]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

from foretrace.graph import Constant, Tensor, Value

SCALAR_TYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4",
    "bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16",
    "uint32", "uint64",
)  # fmt: skip
LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
_NUMBERED = {
    "ScalarType": ("dtype", SCALAR_TYPES),
    "Layout": ("layout", LAYOUTS),
    "MemoryFormat": ("memory_format", MEMORY_FORMATS),
}
_OPAQUE = {"ProcessGroup": "group", "ReduceOp": "reduce_op", "Work": "work", "Generator": "generator"}

Naming: TypeAlias = Callable[[int], int]
"""Gives the storage behind a storage id its own number: the trace uses ids again once they are free."""
Reading: TypeAlias = Callable[[Any, Naming], Value]
"""Makes a value of what a trace writes for it."""


def tensors_among(values: list[Any]) -> list[list[Any]]:
    """The tensors among values, those in lists included.

    >>> [t[0] for t in tensors_among([[1, 2, 0, 8, 4, "cpu"], 7, [[5, 6, 0, 8, 4, "cpu"]]])]
    [1, 5]
    """
    found: list[list[Any]] = []
    for value in values:
        if value.__class__ is list and value:
            if len(value) == 6 and value[5].__class__ is str:
                found.append(value)
            elif value[0].__class__ is list:
                found += tensors_among(value)
    return found


def decoded(value: Any, shape: Any, kind: str, stride: Any, parameter: Parameter | None, storage: Naming) -> Value:
    """One argument or result.

    >>> decoded("-inf", [], "Double", [], None, lambda i: i)
    Constant(kind='float', value='-inf')
    >>> decoded(15, [], "Int", [], Parameter("dtype", "ScalarType?", True), lambda i: i)
    Constant(kind='dtype', value='bfloat16')
    >>> decoded([7, 0, 0, 0, 0, ""], [4, 2], "Tensor(float)", [0, 0], None, lambda i: i).layout
    'sparse_coo'
    """
    return reading(shape, kind, stride, parameter)(value, storage)


def reading(shape: Any, kind: str, stride: Any, parameter: Parameter | None) -> Reading:
    """How an argument or a result of this shape, type and stride is decoded.

    >>> read = reading([4, 2], "Tensor(float)", [2, 1], None)
    >>> [read([number, 3, 0, 8, 4, "cpu"], lambda i: i).id for number in (5, 6)]
    [5, 6]
    """
    if kind.startswith("Tensor(nullptr"):
        return lambda value, storage: None
    if kind.startswith("Tensor("):
        return _tensors(shape, kind, stride)
    if kind.startswith(("GenericList[", "Tuple[")):
        return _sequences(shape, kind, stride, parameter)
    return lambda value, storage: _single(value, kind, parameter)


def _single(value: Any, kind: str, parameter: Parameter | None) -> Value:
    """What is neither a tensor nor a list."""
    if value == "<None>" or kind == "None":
        return None
    if kind == "Int" and parameter:
        return _number_or_name(value, parameter)
    if kind == "Double" and isinstance(value, str):
        return Constant("float", value.replace("-nan", "nan"))
    if kind == "Device":
        return Constant("device", str(value))
    if kind in ("Int", "Double", "Bool", "String"):
        return value  # type: ignore[no-any-return]
    declared = parameter.type.rstrip("?").rpartition(".")[2] if parameter else ""
    return Constant(_OPAQUE.get(declared, "object"), "" if declared in _OPAQUE else declared or kind)


def _number_or_name(value: Any, parameter: Parameter) -> Value:
    what, names = _NUMBERED.get(parameter.type.rstrip("?"), ("", ()))
    if not what or not isinstance(value, int):
        return value  # type: ignore[no-any-return]
    return Constant(what, names[value] if 0 <= value < len(names) else str(value))


def _tensors(shape: Any, kind: str, stride: Any) -> Reading:
    sizes, dtype, steps = tuple(map(int, shape)), _dtype_in(kind), None if stride is None else tuple(map(int, stride))
    holds_some = all(sizes)

    def read(value: Any, storage: Naming) -> Tensor:
        number, storage_id, offset, elements, _, device = value
        # The trace asks sparse tensors for their memory, which they have none of by themselves, and for nothing else.
        sparse = holds_some and not storage_id and not elements and not device
        return Tensor(
            sizes,
            dtype,
            str(device),
            None if sparse else steps,
            int(offset),
            int(number),
            storage(storage_id) if storage_id else -1,
            "sparse_coo" if sparse else "strided",
        )

    return read


@lru_cache(maxsize=256)
def _dtype_in(kind: str) -> str:
    """Of a tensor's kind: a step has thousands of tensors, and few kinds of them."""
    name = kind[len("Tensor(") : -1]
    return dtype_name(name) or name


def _sequences(shape: Any, kind: str, stride: Any, parameter: Parameter | None) -> Reading:
    kinds, make = _kinds_in(kind), tuple if kind.startswith("Tuple") else list

    @cache
    def items(count: int) -> list[Reading]:
        shapes = shape if isinstance(shape, list) and len(shape) == count else [[]] * count
        strides = stride if isinstance(stride, list) and len(stride) == count else [None] * count
        return [reading(s, k, t, None) for s, k, t in zip(shapes, kinds, strides)]

    def read(value: Any, storage: Naming) -> Value:
        if not isinstance(value, list):
            return _single(value, kind, parameter)
        return make([one(item, storage) for one, item in zip(items(len(value)), value)])

    return read


@lru_cache(maxsize=4096)
def _kinds_in(kind: str) -> tuple[str, ...]:
    """Of what is in a list or a tuple: a step has the same ones over and over."""
    inner = kind[kind.index("[") + 1 :]
    return tuple(split_outside_brackets(inner)) if inner != "]" else ()


def encoded(value: Value) -> tuple[Any, Any, str]:
    """The value, shape and type that an execution trace would write: what `decoded` reads.

    A storage is written as its number and one, since 0 says that there is none.

    >>> encoded([2, Tensor((4,), "bfloat16", "cuda:0", id=5, storage=6)])
    ([2, [5, 7, 0, 4, 2, 'cuda:0']], [[], [4]], 'GenericList[Int,Tensor(c10::BFloat16)]')
    """
    if isinstance(value, Tensor):
        numbers = [value.id, value.storage + 1, value.offset, value.numel, value.itemsize, value.device]
        return numbers, list(value.shape), f"Tensor({CPP_NAMES.get(value.dtype, value.dtype)})"
    if isinstance(value, Constant):
        return _encoded_constant(value)
    if isinstance(value, (list, tuple)):
        values, shapes, kinds = zip(*map(encoded, value)) if value else ((), (), ())
        container = "GenericList" if isinstance(value, list) else "Tuple"
        return list(values), list(shapes), f"{container}[{','.join(kinds)}]"
    if value is None:
        return "<None>", [], "None"
    if isinstance(value, dict):
        return "<GenericDict>", [], "GenericDict"
    return value, [], {bool: "Bool", int: "Int", float: "Double", str: "String"}[type(value)]


def _encoded_constant(constant: Constant) -> tuple[Any, Any, str]:
    if constant.kind == "device":
        return constant.value, [], "Device"
    if constant.kind == "float":
        return constant.value, [], "Double"
    for kind, names in _NUMBERED.values():
        if constant.kind == kind and constant.value in names:
            return names.index(constant.value), [], "Int"
    return "<Object>", [], "Object"


# --- was formats.dtypes: Names of dtypes.

DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "bool": "bool",
    "long int": "int64", "long": "int64", "long long": "int64", "int": "int32", "short int": "int16", "short": "int16",
    "signed char": "int8", "char": "int8", "unsigned char": "uint8", "unsigned short": "uint16",
    "short unsigned int": "uint16", "unsigned int": "uint32", "unsigned long": "uint64", "long unsigned int": "uint64",
    "c10::complex<c10::Half>": "complex32", "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::qint8": "qint8", "c10::quint8": "quint8", "c10::qint32": "qint32",
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64", "Int": "int32",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
"""Names of dtypes by what C++ and c10 call them."""

CPP_NAMES = {name: cpp for cpp, name in reversed(DTYPES.items())}
"""The first of C++'s names of each dtype."""


def dtype_name(name: str) -> str:
    """The name PyTorch gives a dtype in Python; empty for what is none.

    >>> dtype_name("c10::BFloat16"), dtype_name("c10::Float8_e4m3fn"), dtype_name("TensorList")
    ('bfloat16', 'float8_e4m3fn', '')
    """
    if "Float8" in name or "Float4" in name:
        return name.removeprefix("c10::").lower()
    return DTYPES.get(name, "")


# --- was formats.schema_text: Signatures of PyTorch operators, as execution traces write them.


class Parameter(NamedTuple):
    """One parameter of an operator: its name, its type without alias marks, and whether it goes by keyword only."""

    name: str
    type: str
    keyword: bool


class Signature(NamedTuple):
    """What an operator is called and what it takes."""

    overload: str
    parameters: tuple[Parameter, ...]


@lru_cache(maxsize=4096)
def signature(schema: str) -> Signature:
    """The signature a schema text describes; an empty one for an empty text.

    >>> s = signature("aten::sum.dim_IntList(Tensor self, int[1]? dim, *, ScalarType? dtype=None) -> Tensor")
    >>> s.overload, [p.name for p in s.parameters], s.parameters[2]
    ('dim_IntList', ['self', 'dim', 'dtype'], Parameter(name='dtype', type='ScalarType?', keyword=True))
    """
    head, _, rest = schema.partition("(")
    parameters: list[Parameter] = []
    keyword = False
    for text in split_outside_brackets(rest):
        declared = text.partition("=")[0].strip()
        if declared == "*":
            keyword = True
        elif declared:
            kind, _, name = declared.rpartition(" ")
            parameters.append(Parameter(name, kind, keyword))
    return Signature(head.partition(".")[2], tuple(parameters))


def split_outside_brackets(text: str) -> Iterator[str]:
    """The parts of a text between its commas, those in brackets not counted, up to a bracket that closes nothing.

    >>> list(split_outside_brackets("Int,Tuple[Int,Tensor(float)]"))
    ['Int', 'Tuple[Int,Tensor(float)]']
    """
    depth = start = 0
    for at, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
            if depth < 0:
                yield text[start:at]
                return
        elif letter == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
