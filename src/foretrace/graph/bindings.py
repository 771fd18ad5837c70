"""Bindings: which variable (or slot) holds each tensor of a step that is alive.

A recording identifies tensors and storages by id. Two tensors with the same view of the same storage count as one:
autograd's own detaches are not recorded, so a saved tensor comes back under a new id.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Generic, TypeAlias, TypeVar

from foretrace.graph.op import Tensor

Holder = TypeVar("Holder", bound=Hashable)
View: TypeAlias = "tuple[object, ...]"


def view_of(tensor: Tensor) -> View:
    """The part of a storage that a tensor views: equal for tensors that count as one.

    >>> saved, unpacked = (Tensor((4,), "float32", stride=(1,), id=number, storage=3) for number in (7, 9))
    >>> view_of(saved) == view_of(unpacked)
    True
    """
    if tensor.storage < 0:
        return (-1, tensor.id)
    return (tensor.storage, tensor.offset, tensor.shape, tensor.stride, tensor.dtype, tensor.layout)


class Bindings(Generic[Holder]):
    """The holder of each live tensor, updated while the calls of a step are processed in order.

    >>> x, again = (Tensor((4,), "float32", stride=(1,), id=number, storage=0) for number in (0, 1))
    >>> bindings = Bindings[str]()
    >>> bindings.bind(x, "t0")
    >>> bindings.find(again), bindings.release(0), bindings.find(again)
    ('t0', ['t0'], None)
    """

    def __init__(self) -> None:
        self._of_tensor: dict[int, Holder] = {}
        self._of_view: dict[View, Holder] = {}
        self._on_storage: dict[int, dict[Holder, Tensor]] = {}
        self._keys: dict[Holder, list[tuple[int, View]]] = {}
        """The tensor ids and views of each holder."""

    def find(self, tensor: Tensor) -> Holder | None:
        """The holder of a tensor, by its id or by an equal view of its storage; None if there is none."""
        known = self.by_id(tensor)
        return self._of_view.get(view_of(tensor)) if known is None and tensor.id >= 0 else known

    def by_id(self, tensor: Tensor) -> Holder | None:
        """The holder of a tensor by its id; None if there is none, or if the source has no ids."""
        return self._of_tensor.get(tensor.id) if tensor.id >= 0 else None

    def on(self, storage: int) -> dict[Holder, Tensor]:
        """All holders on a storage, with their tensors."""
        return self._on_storage.get(storage, {})

    def knows(self, storage: int) -> bool:
        """Whether a storage has had a holder and was not freed since."""
        return storage in self._on_storage

    def base_of(self, tensor: Tensor) -> Holder | None:
        """A holder on a tensor's storage of which the tensor can be a view; None if there is none."""
        there = self.on(tensor.storage).items()
        return next((holder for holder, t in there if t.dtype == tensor.dtype and t.layout == "strided"), None)

    def bind(self, tensor: Tensor, holder: Holder) -> None:
        """Make a holder the one of a tensor."""
        if tensor.id < 0:
            return  # it can't be looked up again
        view = view_of(tensor)
        self._of_tensor[tensor.id] = self._of_view[view] = holder
        self._keys.setdefault(holder, []).append((tensor.id, view))
        if tensor.storage >= 0:
            self.hold(tensor.storage, holder, tensor)

    def hold(self, storage: int, holder: Holder, tensor: Tensor) -> None:
        """Add a holder to a storage."""
        self._on_storage.setdefault(storage, {})[holder] = tensor

    def rebind(self, tensor: Tensor, holder: Holder) -> None:
        """Bind a holder to a tensor on another storage: it is no longer released with the old one."""
        self.forget(holder)
        for there in self._on_storage.values():
            there.pop(holder, None)
        self.bind(tensor, holder)

    def move(self, old: int, new: int) -> list[Holder]:
        """Move all holders of a resized storage to its new id, and return them."""
        if old not in self._on_storage:
            return []
        moved = self._on_storage[new] = self._on_storage.pop(old)
        for holder, tensor in list(moved.items()):
            self.bind(replace(tensor, storage=new), holder)
        return list(moved)

    def release(self, storage: int) -> list[Holder]:
        """Free a storage and return the holders that ended with it."""
        ended = list(self._on_storage.pop(storage, {}))
        for holder in ended:
            self.forget(holder)
        return ended

    def forget(self, holder: Holder) -> None:
        """Remove a holder from all lookups."""
        for number, view in self._keys.pop(holder, ()):
            if self._of_tensor.get(number) == holder:
                del self._of_tensor[number]
            if self._of_view.get(view) == holder:
                del self._of_view[view]
