"""Op, one call that reached the dispatcher with every argument; its tensors: shape, strides, dtype, never values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16, "complex32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip
"""Bytes of one element by dtype name."""

FLOATING = ("bfloat16", "float16", "float32", "float64")
"""Dtypes that a step may compute in. Eight-bit ones are left out: their operators take scales as well."""
HALF_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape, layout and identity of a tensor; never its values.

    ``id`` and ``storage`` are -1 where the source does not identify the tensor (a profiler trace knows shapes only).

    >>> Tensor(shape=(64, 128), dtype="bfloat16").nbytes
    16384
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = ""
    stride: tuple[int, ...] | None = None
    offset: int = 0
    id: int = -1
    storage: int = -1
    layout: str = "strided"
    stored: int = -1
    """Elements that a sparse matrix stores; -1 where it is dense, or where that is unknown."""

    @property
    def numel(self) -> int:
        """Number of elements.

        >>> Tensor(shape=(2, 3), dtype="int64").numel
        6
        """
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 0 for an unknown dtype."""
        return ITEMSIZE.get(self.dtype, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements if they lay densely."""
        return math.prod(self.shape) * ITEMSIZE.get(self.dtype, 0)


@dataclass(slots=True)
class Storage:
    """A block of memory: size, device, and the ops between which it was allocated.

    ``birth`` is the row of the op that allocated it, -1 if it existed before the step. ``death`` is the row of the
    first op after it was freed, -1 if it outlived the step. ``held`` says that a module holds it, as a weight or a
    buffer; traces of others do not know that of any storage. ``pinned`` says that it is page-locked memory of the host,
    which the device reads and writes by itself.
    """

    id: int
    nbytes: int
    device: str
    birth: int = -1
    death: int = -1
    held: bool = False
    pinned: bool = False


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor (row-major), as PyTorch computes them.

    >>> contiguous_strides((2, 3, 4)), contiguous_strides((0, 5))
    ((12, 4, 1), (5, 1))
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_contiguous(tensor: Tensor) -> bool:
    """Whether elements lie in row-major order.

    >>> is_contiguous(Tensor((2, 1, 3), "float32", "cuda:0", stride=(3, 99, 1)))
    True
    """
    if tensor.stride is None:
        return True
    expected = 1
    for size, step in zip(reversed(tensor.shape), reversed(tensor.stride)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True


def with_shape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor with another shape: dense, with its dimensions in the same memory order (channels last stays so).

    >>> with_shape(Tensor((2, 3, 5, 5), "float32", stride=(75, 1, 15, 3)), (8, 3, 5, 5)).stride
    (75, 1, 15, 3)
    """
    shape = tuple(shape)
    if shape == tensor.shape or tensor.stride is None:
        return replace(tensor, shape=shape)
    old = tensor.stride
    order = sorted(range(len(shape)), key=lambda dim: (-old[dim], -tensor.shape[dim], dim))
    strides = [0] * len(shape)
    for dim, step in zip(order, contiguous_strides([shape[dim] for dim in order])):
        strides[dim] = step
    return replace(tensor, shape=shape, stride=tuple(strides))


def with_view(tensor: Tensor, shape: tuple[int, ...], stride: tuple[int, ...] | None, offset: int) -> Tensor:
    """The tensor with another shape, stride and offset: several times as fast as ``replace()``."""
    return Tensor(
        shape, tensor.dtype, tensor.device, stride, offset, tensor.id, tensor.storage, tensor.layout, tensor.stored
    )


def end_in_storage(tensor: Tensor) -> int:
    """Bytes from the start of the storage to the end of the tensor's last element: what the storage must hold.

    >>> end_in_storage(Tensor((2, 3), "float32", stride=(4, 1), offset=1))
    32
    """
    return _end_element(tensor.shape, tensor.stride, tensor.offset) * tensor.itemsize


@lru_cache(maxsize=1 << 16)  # a step asks for the same few hundred thousands of times
def _end_element(shape: tuple[int, ...], stride: tuple[int, ...] | None, offset: int) -> int:
    if not math.prod(shape):
        return 0
    return offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride or contiguous_strides(shape)))


PHASES = ("forward", "backward", "optimizer", "other")
"""The parts of a step an op can belong to; tables store the position in this tuple."""

SIDE_CALLS = ("cuda::", "storage::", "c10d::wait", "compile::")
"""Prefixes of recorded calls that bypass the dispatcher: they control streams, storages or pending collectives, or mark
where a compiled program begins."""

GENERATED_KERNELS = ("triton_", "cpp_fused")
"""Prefixes of the kernels that torch.compile generates: they are called by their names, and bypass the dispatcher."""

RESIZE = "storage::resize_"
"""A side call: a storage is given another size, as FSDP does with its weights."""
GRAPH_LAUNCH = "cuda::graph_launch"
"""A side call that launches a CUDA graph: as many calls after it as its argument says were captured in that graph, all
of the step without one."""
COMPILED_REGION = "compile::region"
"""A side call that begins a program that torch.compile generated: how many of the calls after it are the program's, and
how many arguments it takes. In a recording ``given`` has these arguments, and ``program`` the number of the program."""
COMPILED_PROGRAM = "compile::program"
"""A program: in a recording's list of them the head, with as ``calls`` how many calls of its graph follow; in a step
whose programs are folded, a call of the program with the number and the tensors that come first."""

ALIGNMENT = 128
"""Elements: the offset of a tensor in its storage affects kernel times only modulo this."""
NAN = float("nan")


class Constant(NamedTuple):
    """An argument that is neither number, text nor tensor.

    Kinds: dtype, device, layout, memory_format, group, reduce_op, generator, work, float (inf and nan), complex,
    tensor (values of a small integer tensor that controls an op), object (only its type is known).

    >>> Constant("dtype", "bfloat16")
    Constant(kind='dtype', value='bfloat16')
    """

    kind: str
    value: str


CONTIGUOUS = Constant("memory_format", "contiguous_format")

Value: TypeAlias = (
    "bool | int | float | str | Tensor | Constant | list[Value] | tuple[Value, ...] | dict[str, Value] | None"
)


class AssumedSize(NamedTuple):
    """A call whose size follows from an assumed share: its least and most work over that of the call as it is, and how
    often it is made at least and at most."""

    less: float
    more: float
    fewest: float = 1.0
    most: float = 1.0


@dataclass(slots=True)
class Op:
    """A dispatcher call: name, arguments, results, where in the step it was made, and when.

    Times are microseconds since the graph's origin, NaN where they were not measured. ``frees`` lists the storages that
    were freed between the previous op and this one.

    >>> Op("aten::mm", (Tensor((4, 8), "float32"), Tensor((8, 2), "float32"))).tensors[1].shape
    (8, 2)
    """

    name: str
    args: tuple[Value, ...] = ()
    kwargs: dict[str, Value] = field(default_factory=dict)
    outputs: tuple[Value, ...] = ()
    overload: str = ""
    phase: str = "other"
    thread: int = 0
    stream: int = 0
    parent: int = -1
    module: str = ""
    node: str = ""
    """The autograd node that made the call, in backward."""
    entered: int = 0
    """Modules entered since the previous op: each costs Python time."""
    frees: tuple[int, ...] = ()
    start_us: float = NAN
    end_us: float = NAN
    line: str = field(default="", repr=False, compare=False)
    """Of a sketch, the line of the user's code that made the call: ``train.py:42``; no part of what is computed."""
    assumed: AssumedSize | None = field(default=None, repr=False, compare=False)
    """Of a sketch, how its size follows from a share of elements that was assumed; None where it does not."""

    def __copy__(self) -> Op:
        # Ten times as fast as copy(): tables copy an op each time one is read.
        return Op(
            self.name, self.args, self.kwargs, self.outputs, self.overload, self.phase, self.thread, self.stream,
            self.parent, self.module, self.node, self.entered, self.frees, self.start_us, self.end_us, self.line,
            self.assumed,
        )  # fmt: skip

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, in order, those in lists and keywords included."""
        found: list[Tensor] = []
        _collect(self.args, found)
        if self.kwargs:
            _collect(self.kwargs.values(), found)
        return found

    @property
    def produced(self) -> list[Tensor]:
        """Every tensor among the results."""
        found: list[Tensor] = []
        _collect(self.outputs, found)
        return found

    @property
    def resized(self) -> tuple[int, int, int] | None:
        """For a storage resize: the storage's id before and after, and its new bytes. None for other calls.

        >>> Op(RESIZE, (3, 4, 1024)).resized, Op(RESIZE, ("3", None)).resized
        ((3, 4, 1024), None)
        """
        match self.args:
            case (int(before), int(after), int(nbytes)) if self.name == RESIZE and nbytes >= 0:
                return before, after, nbytes
        return None

    @property
    def is_side_call(self) -> bool:
        """Whether it controls a stream, a storage or a pending collective and bypasses the dispatcher.

        >>> Op("cuda::event_record").is_side_call
        True
        """
        return self.name.startswith(SIDE_CALLS)


def tensors_in(value: Value) -> list[Tensor]:
    """Tensors inside a value, however deep.

    >>> [t.shape for t in tensors_in([Tensor((1,), "int8"), [Tensor((2,), "int8")]])]
    [(1,), (2,)]
    """
    found: list[Tensor] = []
    _collect((value,), found)
    return found


def _collect(values: Iterable[Value], found: list[Tensor]) -> None:
    """Append the tensors inside some values, however deep; called thousands of times per step."""
    for value in values:
        kind = type(value)
        if kind is Tensor:
            found.append(value)  # type: ignore[arg-type]
        elif kind is list or kind is tuple:
            _collect(value, found)  # type: ignore[arg-type]
        elif kind is dict:
            _collect(value.values(), found)  # type: ignore[union-attr]


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """A value with each tensor in it replaced, however deep.

    >>> map_tensors({"given": [Tensor((8,), "float32"), 2]}, lambda tensor: tensor.shape)
    {'given': [(8,), 2]}
    """
    kind = type(value)  # a Constant is a tuple, but its type is not `tuple`: it stays
    if kind is Tensor:
        return change(value)
    if kind is list:
        return [map_tensors(item, change) for item in value]
    if kind is tuple:
        return tuple([map_tensors(item, change) for item in value])
    if kind is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


def with_tensors(op: Op, change: Callable[[Tensor], Tensor]) -> Op:
    """A copy of an op with each tensor among its arguments and results replaced.

    >>> relu = Op("aten::relu", (Tensor((8,), "float32"),))
    >>> with_tensors(relu, lambda tensor: Tensor((4,), tensor.dtype)).tensors[0].shape
    (4,)
    """
    changed = op.__copy__()
    changed.args = map_tensors(op.args, change)
    changed.kwargs = map_tensors(op.kwargs, change) if op.kwargs else op.kwargs
    changed.outputs = map_tensors(op.outputs, change)
    return changed


def signature(op: Op) -> Hashable:
    """A key that is equal for ops that are expected to take the same time: a step repeats most of its calls.

    Name, overload and arguments count. Of a tensor only shape, dtype and layout count, and which arguments share a
    storage.

    >>> here, there = Tensor((8, 8), "float32", storage=1), Tensor((8, 8), "float32", storage=2)
    >>> product = signature(Op("aten::mm", (here, there)))
    >>> product == signature(Op("aten::mm", (there, here))), product == signature(Op("aten::mm", (here, here)))
    (True, False)
    """
    parts: list[Hashable] = [op.name, op.overload]
    views: list[Tensor] = []
    _add_to_signature(op.args, parts, views)
    if op.kwargs:
        _add_to_signature(op.kwargs.items(), parts, views)
    last = {view.storage: place for place, view in enumerate(views)}
    if len(last) < len(views):
        parts += [(last[view.storage], view.offset) for view in views]
    return tuple(parts)


def _add_to_signature(values: Iterable[Value], parts: list[Hashable], views: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            views.append(value)
            parts += (value.shape, value.stride, value.offset % ALIGNMENT, value.dtype, value.device, value.layout)
        elif isinstance(value, (list, tuple)):
            parts.append(len(value))
            _add_to_signature(value, parts, views)
        elif isinstance(value, dict):
            parts.append(len(value))
            _add_to_signature(value.items(), parts, views)
        else:
            parts += (type(value).__name__, value)  # since 1, 1.0 and True are equal
