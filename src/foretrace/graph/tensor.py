"""A tensor as an op saw it, and the storage behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

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

    ``id`` and ``storage`` are -1 where the source does not say which tensor it was (a profiler trace knows shapes
    only).

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
        """Bytes of one element; 0 for a dtype nobody knows."""
        return ITEMSIZE.get(self.dtype, 0)

    @property
    def nbytes(self) -> int:
        """Bytes its elements take, were they laid out densely."""
        return math.prod(self.shape) * ITEMSIZE.get(self.dtype, 0)


@dataclass(slots=True)
class Storage:
    """A piece of memory: how large, where, and between which ops it lived.

    ``birth`` is the index of the op that made it, -1 for what was there before the step; ``death`` is the index of
    the first op that ran after it was freed, -1 where it outlived the step.
    """

    id: int
    nbytes: int
    device: str
    birth: int = -1
    death: int = -1


# --- was transforms.layout: Where the elements of a tensor lie.


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps, last dimension innermost, as PyTorch gives them.

    >>> dense_strides((2, 3, 4)), dense_strides((0, 5))
    ((12, 4, 1), (5, 1))
    """
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def with_shape(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor with another shape, its dimensions in the same order of memory and without gaps.

    >>> with_shape(Tensor((2, 3, 5, 5), "float32", stride=(75, 1, 15, 3)), (8, 3, 5, 5)).stride
    (75, 1, 15, 3)
    """
    shape = tuple(shape)
    if shape == tensor.shape or tensor.stride is None:
        return replace(tensor, shape=shape)
    old = tensor.stride
    order = sorted(range(len(shape)), key=lambda dim: (-old[dim], -tensor.shape[dim], dim))
    strides = [0] * len(shape)
    for dim, step in zip(order, dense_strides([shape[dim] for dim in order])):
        strides[dim] = step
    return replace(tensor, shape=shape, stride=tuple(strides))


def moved(tensor: Tensor, shape: tuple[int, ...], stride: tuple[int, ...] | None, offset: int) -> Tensor:
    """The tensor with another shape and place: as replace() would, several times as fast."""
    return Tensor(shape, tensor.dtype, tensor.device, stride, offset, tensor.id, tensor.storage, tensor.layout)


def reach(tensor: Tensor) -> int:
    """Bytes from the start of its storage to its last element.

    >>> reach(Tensor((2, 3), "float32", stride=(4, 1), offset=1))
    32
    """
    return _elements(tensor.shape, tensor.stride, tensor.offset) * tensor.itemsize


@lru_cache(maxsize=1 << 16)  # a step asks for the same few hundred thousands of times
def _elements(shape: tuple[int, ...], stride: tuple[int, ...] | None, offset: int) -> int:
    if not prod(shape):
        return 0
    return offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride or dense_strides(shape)))
