"""Numbers for tensors and storages that nobody has yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from foretrace.graph.op import Op
from foretrace.graph.tensor import Tensor
from foretrace.transforms.layout import dense_strides


class Fresh:
    """Makes tensors that are new to a step.

    >>> x = Tensor((4,), "float32", id=7, storage=2)
    >>> made = Fresh([Op("aten::relu", (x,))]).tensor((2, 2), like=x)
    >>> made.id, made.storage, made.stride
    (8, 3, (2, 1))
    """

    def __init__(self, ops: Iterable[Op]) -> None:
        tensors = [tensor for op in ops for tensor in (*op.tensors, *op.produced)]
        self._tensor = max((tensor.id for tensor in tensors), default=-1)
        self._storage = max((tensor.storage for tensor in tensors), default=-1)

    def number(self) -> int:
        """The number of another tensor."""
        self._tensor += 1
        return self._tensor

    def storage(self) -> int:
        """The number of another storage."""
        self._storage += 1
        return self._storage

    def tensor(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A dense tensor with a storage of its own, of another's type and device."""
        return Tensor(shape, like.dtype, like.device, dense_strides(shape), 0, self.number(), self.storage())

    def view(self, of: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Another look at a tensor without gaps."""
        return replace(of, shape=shape, stride=dense_strides(shape), id=self.number())
