"""Values as PyTorch's traces write them: dtypes, operator schemas, and the arguments and results of ops.

An execution trace keeps four parallel lists: values, shapes, types and, since schema 1.1.1, strides. A tensor's value
is ``[tensor id, storage id, offset, elements, bytes per element, device]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

from foretrace.graph import Constant, Tensor, Value
from foretrace.graph.operators import MEMORY_FORMATS

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
"""Names of dtypes by their names in C++ and c10."""
CPP_NAMES = {name: cpp for cpp, name in reversed(DTYPES.items())}
"""The first C++ name of each dtype."""
SCALAR_TYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4",
    "bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16",
    "uint32", "uint64",
)  # fmt: skip
"""Dtypes by their number in c10::ScalarType."""
LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "mkldnn", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged")
_ENUMERATIONS = {
    "ScalarType": ("dtype", SCALAR_TYPES),
    "Layout": ("layout", LAYOUTS),
    "MemoryFormat": ("memory_format", MEMORY_FORMATS),
}
_OPAQUE = {"ProcessGroup": "group", "ReduceOp": "reduce_op", "Work": "work", "Generator": "generator"}

StorageNumber: TypeAlias = Callable[[int], int]
"""The number of the storage that a trace's storage id refers to: the trace reuses ids after a free."""
Decoder: TypeAlias = Callable[[Any, StorageNumber], Value]
"""Turns what a trace writes into a value."""
MAX_SENT = 1 << 50
"""The most bytes of a collective: a size beyond is damaged, and so unknown."""


def sent_bytes(elements: int, itemsize: int = 1) -> int:
    """The bytes of a collective; 0 for a size that no memory has.

    >>> sent_bytes(1024, 2), sent_bytes(2**62, 4), sent_bytes(-1)
    (2048, 0, 0)
    """
    return elements * itemsize if 0 <= elements * itemsize <= MAX_SENT else 0


class Parameter(NamedTuple):
    """One parameter of an operator: its name, its type without alias marks, and whether it is keyword-only."""

    name: str
    type: str
    keyword: bool


class Signature(NamedTuple):
    """Overload name and parameters of an operator."""

    overload: str
    parameters: tuple[Parameter, ...]


def dtype_name(name: str) -> str:
    """PyTorch's Python name of a dtype; empty for what is not a dtype.

    >>> dtype_name("c10::BFloat16"), dtype_name("c10::Float8_e4m3fn"), dtype_name("TensorList")
    ('bfloat16', 'float8_e4m3fn', '')
    """
    if "Float8" in name or "Float4" in name:
        return name.removeprefix("c10::").lower()
    return DTYPES.get(name, "")


@lru_cache(maxsize=4096)
def signature(schema: str) -> Signature:
    """The signature that a schema text describes; an empty one for an empty text.

    >>> s = signature("aten::sum.dim_IntList(Tensor self, int[1]? dim, *, ScalarType? dtype=None) -> Tensor")
    >>> s.overload, [p.name for p in s.parameters], s.parameters[2]
    ('dim_IntList', ['self', 'dim', 'dtype'], Parameter(name='dtype', type='ScalarType?', keyword=True))
    """
    head, _, rest = schema.partition("(")
    parameters: list[Parameter] = []
    keyword = False
    for text in _split_outside_brackets(rest):
        declared = text.partition("=")[0].strip()
        if declared == "*":
            keyword = True
        elif declared:
            kind, _, name = declared.rpartition(" ")
            parameters.append(Parameter(name, kind, keyword))
    return Signature(head.partition(".")[2], tuple(parameters))


def _split_outside_brackets(text: str) -> Iterator[str]:
    """The parts of a text between commas outside brackets, up to a bracket that closes nothing.

    >>> list(_split_outside_brackets("Int,Tuple[Int,Tensor(float)]"))
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


def find_tensors(values: list[Any]) -> list[list[Any]]:
    """The tensors among a trace's values, including those in lists.

    >>> [t[0] for t in find_tensors([[1, 2, 0, 8, 4, "cpu"], 7, [[5, 6, 0, 8, 4, "cpu"]]])]
    [1, 5]
    """
    found: list[list[Any]] = []
    for value in values:
        if value.__class__ is list and value:
            if len(value) == 6 and value[5].__class__ is str:
                found.append(value)
            elif value[0].__class__ is list:
                found += find_tensors(value)
    return found


def decoded(
    value: Any, shape: Any, kind: str, stride: Any, parameter: Parameter | None, storage: StorageNumber
) -> Value:
    """An argument or result from what a trace writes for it.

    >>> decoded("-inf", [], "Double", [], None, lambda i: i)
    Constant(kind='float', value='-inf')
    >>> decoded(15, [], "Int", [], Parameter("dtype", "ScalarType?", True), lambda i: i)
    Constant(kind='dtype', value='bfloat16')
    >>> decoded([7, 0, 0, 0, 0, ""], [4, 2], "Tensor(float)", [0, 0], None, lambda i: i).layout
    'sparse_coo'
    """
    return decoder(shape, kind, stride, parameter)(value, storage)


def decoder(shape: Any, kind: str, stride: Any, parameter: Parameter | None) -> Decoder:
    """The decoder of an argument or result of this shape, type and stride.

    >>> decode = decoder([4, 2], "Tensor(float)", [2, 1], None)
    >>> [decode([number, 3, 0, 8, 4, "cpu"], lambda i: i).id for number in (5, 6)]
    [5, 6]
    """
    if kind.startswith("Tensor(nullptr"):
        return lambda value, storage: None
    if kind.startswith("Tensor("):
        return _tensor_decoder(shape, kind, stride)
    if kind.startswith(("GenericList[", "Tuple[")):
        return _sequence_decoder(shape, kind, stride, parameter)
    return lambda value, storage: _scalar(value, kind, parameter)


def _scalar(value: Any, kind: str, parameter: Parameter | None) -> Value:
    """A value that is neither a tensor nor a list."""
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
    what, names = _ENUMERATIONS.get(parameter.type.rstrip("?"), ("", ()))
    if not what or not isinstance(value, int):
        return value  # type: ignore[no-any-return]
    return Constant(what, names[value] if 0 <= value < len(names) else str(value))


def _tensor_decoder(shape: Any, kind: str, stride: Any) -> Decoder:
    sizes, dtype, steps = tuple(map(int, shape)), _dtype_in(kind), None if stride is None else tuple(map(int, stride))
    has_elements = all(sizes)

    def decode(value: Any, storage: StorageNumber) -> Tensor:
        number, storage_id, offset, elements, _, device = value
        # The trace asks sparse tensors only for their memory, and they have none themselves.
        sparse = has_elements and not storage_id and not elements and not device
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

    return decode


@lru_cache(maxsize=256)
def _dtype_in(kind: str) -> str:
    """The dtype in a tensor's type: a step has thousands of tensors of a few types."""
    name = kind[len("Tensor(") : -1]
    return dtype_name(name) or name


def _sequence_decoder(shape: Any, kind: str, stride: Any, parameter: Parameter | None) -> Decoder:
    kinds, make = _item_types(kind), tuple if kind.startswith("Tuple") else list

    @cache
    def items(count: int) -> list[Decoder]:
        shapes = shape if isinstance(shape, list) and len(shape) == count else [[]] * count
        strides = stride if isinstance(stride, list) and len(stride) == count else [None] * count
        return [decoder(s, k, t, None) for s, k, t in zip(shapes, kinds, strides)]

    def decode(value: Any, storage: StorageNumber) -> Value:
        if not isinstance(value, list):
            return _scalar(value, kind, parameter)
        return make([one(item, storage) for one, item in zip(items(len(value)), value)])

    return decode


@lru_cache(maxsize=4096)
def _item_types(kind: str) -> tuple[str, ...]:
    """The types of the items of a list or a tuple: a step repeats the same ones."""
    inner = kind[kind.index("[") + 1 :]
    return tuple(_split_outside_brackets(inner)) if inner != "]" else ()


def encoded(value: Value) -> tuple[Any, Any, str]:
    """The value, shape and type that an execution trace would hold: what `decoded` reads.

    A storage is written as its number plus one, since 0 means none.

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
    for kind, names in _ENUMERATIONS.values():
        if constant.kind == kind and constant.value in names:
            return names.index(constant.value), [], "Int"
    return "<Object>", [], "Object"
