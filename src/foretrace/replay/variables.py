"""Which variable holds which tensor, from the first call to the last.

A recording knows tensors and storages by number. Two tensors that look at the same place in the same way are one to
a replay: autograd's own detaches are not in a recording, so what it saved comes back under a number of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from foretrace.graph import Content, Storage, Tensor
from foretrace.graph.edits.layout import dense_strides
from foretrace.replay.literals import Name
from foretrace.replay.plan import Argument, Call, Input, Memory

View: TypeAlias = "tuple[int, int, tuple[int, ...], tuple[int, ...] | None, str]"


class Variables:
    """Names for tensors. What nobody has made was there before the step: it becomes an input."""

    def __init__(self, storages: dict[int, Storage], sparse: dict[int, tuple[Tensor, Tensor]]) -> None:
        self.inputs: list[Input] = []
        self.memories: dict[int, Memory] = {}
        self._storages = storages
        self._sparse = sparse
        self._of_tensor: dict[int, Name] = {}
        self._of_view: dict[View, Name] = {}
        self._on_storage: dict[int, dict[Name, Tensor]] = {}
        self._keys: dict[Name, list[tuple[int, View]]] = {}
        """Under which numbers each variable is known."""
        self._tensors, self._pieces = 0, 0

    def read(self, tensor: Tensor) -> tuple[Name, Call | None]:
        """The variable that holds a tensor, and the call that has to make it first where there is none yet."""
        known = (self._of_tensor.get(tensor.id) or self._of_view.get(_view(tensor))) if tensor.id >= 0 else None
        if known is not None:
            return known, None
        alive = self._on_storage.get(tensor.storage)
        if alive and tensor.storage not in self.memories:
            return self._viewed(tensor, alive)
        return self._input(tensor), None

    def make(self, tensor: Tensor) -> Name | None:
        """A new variable for a result; None where it is a tensor that was given, changed in place."""
        held = self._of_tensor.get(tensor.id) if tensor.id >= 0 else None
        if held is not None and (tensor.storage < 0 or held in self._on_storage.get(tensor.storage, ())):
            return None
        if held is not None:  # the same object, now with another storage: it does not end with the one it had
            self._leave(held)
            self._bind(tensor, held)
            return None
        name = self._new()
        self._bind(tensor, name)
        for part in self._sparse.get(tensor.id, ()):  # a sparse tensor holds the storages of its parts
            if part.storage >= 0:
                self._on_storage.setdefault(part.storage, {})[name] = tensor
        return name

    def end(self, tensors: Iterable[Tensor]) -> list[Name]:
        """The variables of tensors that nobody will see again; they end."""
        ended = [name for tensor in tensors if (name := self._of_tensor.get(tensor.id)) is not None]
        given = {entry.name for entry in self.inputs}
        ended = [name for name in ended if name not in given]
        for name in ended:
            self.forget(name)
        return ended

    def free(self, storages: Iterable[int]) -> list[Name]:
        """The variables that end with these storages."""
        ended: dict[Name, None] = {}
        for storage in storages:
            if storage not in self.memories:
                ended.update(dict.fromkeys(self._on_storage.pop(storage, {})))
        for name in ended:
            self.forget(name)
        return list(ended)

    def forget(self, name: Name) -> None:
        """The variable ends."""
        for number, view in self._keys.pop(name, ()):
            if self._of_tensor.get(number) == name:
                del self._of_tensor[number]
            if self._of_view.get(view) == name:
                del self._of_view[view]

    def resized(self, old: int, new: int) -> Name | None:
        """A storage was given another size: its variables are the new one's. One of them; None where nobody has any."""
        if old not in self._on_storage:
            return self._bytes(old, new)
        moved = self._on_storage.pop(old, {})
        self._on_storage[new] = moved
        if old in self.memories:
            self.memories[new] = self.memories[old]
        for name, tensor in list(moved.items()):
            self._bind(replace(tensor, storage=new), name)
        return next(iter(moved), None)

    def _bytes(self, old: int, new: int) -> Name | None:
        """All of a storage that was there before the step, and that nobody has looked at until it gets another size."""
        known = [self._storages[number] for number in (old, new) if number in self._storages]
        if not known:
            return None
        name = self._new()
        nbytes = max(storage.nbytes for storage in known)
        whole = Tensor((nbytes,), "uint8", known[0].device, (1,), storage=new)
        self._on_storage[new] = {name: whole}
        gathered_later = known[0].nbytes == 0  # as FSDP does: there is no memory for it yet
        self.memories[new] = self._piece(0 if gathered_later else nbytes, whole.device)
        self.inputs.append(Input(name, whole, self.memories[new], Content("unknown")))
        return name

    def _bind(self, tensor: Tensor, name: Name) -> None:
        if tensor.id < 0:
            return  # a source that can't say which tensor it was: nobody will ask for it again
        view = _view(tensor)
        self._of_tensor[tensor.id] = self._of_view[view] = name
        self._keys.setdefault(name, []).append((tensor.id, view))
        if tensor.storage >= 0:
            self._on_storage.setdefault(tensor.storage, {})[name] = tensor

    def _leave(self, name: Name) -> None:
        """The variable is on no storage any more."""
        self.forget(name)
        for names in self._on_storage.values():
            names.pop(name, None)

    def _new(self) -> Name:
        self._tensors += 1
        return Name(f"t{self._tensors - 1}")

    def _viewed(self, tensor: Tensor, alive: dict[Name, Tensor]) -> tuple[Name, Call | None]:
        """Look at a storage of the step in a way that no call has left behind."""
        base = next((n for n, t in alive.items() if t.dtype == tensor.dtype and t.layout == "strided"), None)
        if base is None or tensor.stride is None:
            return self._input(tensor), None
        name = self._new()
        self._bind(tensor, name)
        arguments: tuple[Argument, ...] = (base, list(tensor.shape), list(tensor.stride), tensor.offset)
        return name, Call(-1, "aten::as_strided", "default", args=arguments, results=(name,), made={name: tensor})

    def _input(self, tensor: Tensor) -> Name:
        parts: tuple[Name, ...] = ()
        memory = None
        if tensor.layout != "strided":
            parts = tuple(self._part(part) for part in self._sparse.get(tensor.id, ()))
        else:
            memory = self._memory(tensor)
        name = self._new()
        self._bind(tensor, name)
        self.inputs.append(Input(name, tensor, memory, Content("unknown"), parts))
        return name

    def _part(self, tensor: Tensor) -> Name:
        """A part of a sparse input: what a call of the step has made can't be one, so that it gets a twin."""
        made = self._on_storage.get(tensor.storage) and tensor.storage not in self.memories
        known = None if made else self.read(tensor)[0]
        if known is not None and any(known == entry.name for entry in self.inputs):
            return known
        name = self._new()
        own = replace(tensor, storage=-1)
        self.inputs.append(Input(name, own, self._memory(own), Content("unknown")))
        return name

    def nbytes(self, tensor: Tensor) -> int:
        """Bytes of the storage that a tensor lies in: those that were recorded, and at least all that it looks at."""
        known = self._storages.get(tensor.storage)
        steps = tensor.stride or dense_strides(tensor.shape)
        reach = tensor.offset + 1 + sum((size - 1) * step for size, step in zip(tensor.shape, steps))
        return max(known.nbytes if known else 0, reach * tensor.itemsize if tensor.numel else 0)

    def _piece(self, nbytes: int, device: str) -> Memory:
        self._pieces += 1
        return Memory(Name(f"m{self._pieces - 1}"), nbytes, device)

    def _memory(self, tensor: Tensor) -> Memory:
        if tensor.storage not in self.memories:
            memory = self._piece(self.nbytes(tensor), tensor.device)
            if tensor.storage < 0:  # a trace that knows no storages: each tensor has its own
                return memory
            self.memories[tensor.storage] = memory
        return self.memories[tensor.storage]


def _view(tensor: Tensor) -> View:
    if tensor.storage < 0:
        return (-1, tensor.id, (), None, "")
    return (tensor.storage, tensor.offset, tensor.shape, tensor.stride, tensor.dtype)
