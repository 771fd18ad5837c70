"""A tensor as an op saw it, and the storage behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16, "complex32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "qint8": 1, "quint8": 1, "qint32": 4,
}  # fmt: skip
"""Bytes of one element by dtype name."""


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
