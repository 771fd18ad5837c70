"""Which tensors of a step are one and the same, and who holds each: a variable, a slot.

A recording knows tensors and storages by number. Two tensors that look at the same place in the same way are one:
autograd's own detaches are not in a recording, so what it saved comes back under a number of its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Generic, TypeAlias, TypeVar

from foretrace.graph.tensor import Tensor

Holder = TypeVar("Holder", bound=Hashable)
View: TypeAlias = "tuple[object, ...]"


def view_of(tensor: Tensor) -> View:
    """What a tensor looks at, and how: equal for tensors that are one and the same.

    >>> saved, taken_out = (Tensor((4,), "float32", stride=(1,), id=number, storage=3) for number in (7, 9))
    >>> view_of(saved) == view_of(taken_out)
    True
    """
    if tensor.storage < 0:
        return (-1, tensor.id)
    return (tensor.storage, tensor.offset, tensor.shape, tensor.stride, tensor.dtype, tensor.layout)


class Bindings(Generic[Holder]):
    """The holder of each tensor that is alive, as the calls of a step are gone through in order.

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
        """Under which numbers and views each holder is known."""

    def find(self, tensor: Tensor) -> Holder | None:
        """Who holds a tensor, by its number or as the same look at the same place; None for nobody."""
        known = self.by_number(tensor)
        return self._of_view.get(view_of(tensor)) if known is None and tensor.id >= 0 else known

    def by_number(self, tensor: Tensor) -> Holder | None:
        """Who holds a tensor by its number; None for nobody, or where the source can't say which tensor it was."""
        return self._of_tensor.get(tensor.id) if tensor.id >= 0 else None

    def on(self, storage: int) -> dict[Holder, Tensor]:
        """All that are held on a storage."""
        return self._on_storage.get(storage, {})

    def knows(self, storage: int) -> bool:
        """Whether something was held on a storage since it was made, and it was not freed."""
        return storage in self._on_storage

    def base_of(self, tensor: Tensor) -> Holder | None:
        """A holder on a tensor's storage through which it can be looked at; None where there is none."""
        there = self.on(tensor.storage).items()
        return next((holder for holder, t in there if t.dtype == tensor.dtype and t.layout == "strided"), None)

    def bind(self, tensor: Tensor, holder: Holder) -> None:
        """From now on this is who holds the tensor."""
        if tensor.id < 0:
            return  # nobody will be able to ask for it again
        view = view_of(tensor)
        self._of_tensor[tensor.id] = self._of_view[view] = holder
        self._keys.setdefault(holder, []).append((tensor.id, view))
        if tensor.storage >= 0:
            self.hold(tensor.storage, holder, tensor)

    def hold(self, storage: int, holder: Holder, tensor: Tensor) -> None:
        """A holder keeps a storage alive."""
        self._on_storage.setdefault(storage, {})[holder] = tensor

    def rebind(self, tensor: Tensor, holder: Holder) -> None:
        """The same object has another storage now: it no longer ends with the one it had."""
        self.forget(holder)
        for there in self._on_storage.values():
            there.pop(holder, None)
        self.bind(tensor, holder)

    def move(self, old: int, new: int) -> list[Holder]:
        """A storage was given another size, and with it another number. All that hold it."""
        if old not in self._on_storage:
            return []
        moved = self._on_storage[new] = self._on_storage.pop(old)
        for holder, tensor in list(moved.items()):
            self.bind(replace(tensor, storage=new), holder)
        return list(moved)

    def release(self, storage: int) -> list[Holder]:
        """A storage is freed: all that were held on it, and are no more."""
        ended = list(self._on_storage.pop(storage, {}))
        for holder in ended:
            self.forget(holder)
        return ended

    def forget(self, holder: Holder) -> None:
        """A holder lets go of what it held."""
        for number, view in self._keys.pop(holder, ()):
            if self._of_tensor.get(number) == holder:
                del self._of_tensor[number]
            if self._of_view.get(view) == holder:
                del self._of_view[view]
