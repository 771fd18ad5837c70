"""Tensors as ops saw them: shape, strides, dtype and identity, never values; and the storages behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16, "complex32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip
"""Bytes of one element by dtype name."""

FLOATING = ("bfloat16", "float16", "float32", "float64")
"""Dtypes that a step may compute in. Eight-bit ones are left out: their operators take scales as well."""


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
    first op after it was freed, -1 if it outlived the step.
    """

    id: int
    nbytes: int
    device: str
    birth: int = -1
    death: int = -1


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
    return Tensor(shape, tensor.dtype, tensor.device, stride, offset, tensor.id, tensor.storage, tensor.layout)


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
