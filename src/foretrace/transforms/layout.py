"""Where the elements of a tensor lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor


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


def reaches(ops: Iterable[Op]) -> dict[int, int]:
    """For each storage that calls see, the bytes up to the last element of it that any of them sees."""
    largest: dict[int, int] = {}
    for op in ops:
        for tensor in (*op.tensors, *op.produced):
            if tensor.storage >= 0:
                largest[tensor.storage] = max(largest.get(tensor.storage, 0), reach(tensor))
    return largest
