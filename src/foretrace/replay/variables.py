"""Which variable holds which tensor, from the first call to the last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from foretrace.graph import Content, Storage, Tensor
from foretrace.graph.bindings import Bindings
from foretrace.graph.tensor import end_in_storage
from foretrace.replay.literals import Name
from foretrace.replay.plan import Argument, Call, Input, Memory


class Variables:
    """Names for tensors. What nobody has made was there before the step: it becomes an input."""

    def __init__(self, storages: dict[int, Storage], sparse: dict[int, tuple[Tensor, Tensor]]) -> None:
        self.inputs: list[Input] = []
        self.memories: dict[int, Memory] = {}
        self._storages = storages
        self._sparse = sparse
        self._bindings = Bindings[Name]()
        self._tensors, self._pieces = 0, 0

    def read(self, tensor: Tensor) -> tuple[Name, Call | None]:
        """The variable that holds a tensor, and the call that has to make it first where there is none yet."""
        known = self._bindings.find(tensor)
        if known is not None:
            return known, None
        base = self._bindings.base_of(tensor) if tensor.storage not in self.memories else None
        if base is None or tensor.stride is None:
            return self._input(tensor), None
        return self._viewed(tensor, base)

    def make(self, tensor: Tensor) -> Name | None:
        """A new variable for a result; None where it is a tensor that was given, changed in place."""
        held = self._bindings.by_id(tensor)
        if held is not None:
            if tensor.storage >= 0 and held not in self._bindings.on(tensor.storage):
                self._bindings.rebind(tensor, held)
            return None
        name = self._new()
        self._bindings.bind(tensor, name)
        for part in self._sparse.get(tensor.id, ()):  # a sparse tensor holds the storages of its parts
            if part.storage >= 0:
                self._bindings.hold(part.storage, name, tensor)
        return name

    def end(self, tensors: Iterable[Tensor]) -> list[Name]:
        """The variables of tensors that nobody will see again; they end."""
        given = {entry.name for entry in self.inputs}
        held = (self._bindings.by_id(tensor) for tensor in tensors)
        ended = [name for name in held if name is not None and name not in given]
        for name in ended:
            self._bindings.forget(name)
        return ended

    def free(self, storages: Iterable[int]) -> list[Name]:
        """The variables that end with these storages."""
        ended = (self._bindings.release(storage) for storage in storages if storage not in self.memories)
        return list(dict.fromkeys(name for names in ended for name in names))

    def resized(self, old: int, new: int) -> Name | None:
        """A storage was given another size: its variables are the new one's. One of them; None where nobody has any."""
        if not self._bindings.knows(old):
            return self._bytes(old, new)
        if old in self.memories:
            self.memories[new] = self.memories[old]
        return next(iter(self._bindings.move(old, new)), None)

    def _bytes(self, old: int, new: int) -> Name | None:
        """All of a storage that was there before the step, and that nobody has looked at until it gets another size."""
        known = [self._storages[number] for number in (old, new) if number in self._storages]
        if not known:
            return None
        name = self._new()
        nbytes = max(storage.nbytes for storage in known)
        whole = Tensor((nbytes,), "uint8", known[0].device, (1,), storage=new)
        self._bindings.hold(new, name, whole)
        gathered_later = known[0].nbytes == 0  # as FSDP does: there is no memory for it yet
        self.memories[new] = self._piece(0 if gathered_later else nbytes, whole.device)
        self.inputs.append(Input(name, whole, self.memories[new], Content("unknown")))
        return name

    def _new(self) -> Name:
        self._tensors += 1
        return Name(f"t{self._tensors - 1}")

    def _viewed(self, tensor: Tensor, base: Name) -> tuple[Name, Call]:
        """Look at a storage of the step, through another variable on it, in a way that no call has left behind."""
        name = self._new()
        self._bindings.bind(tensor, name)
        arguments: tuple[Argument, ...] = (base, list(tensor.shape), list(tensor.stride or ()), tensor.offset)
        return name, Call(-1, "aten::as_strided", "default", args=arguments, results=(name,), made={name: tensor})

    def _input(self, tensor: Tensor) -> Name:
        parts: tuple[Name, ...] = ()
        memory = None
        if tensor.layout != "strided":
            parts = tuple(self._part(part) for part in self._sparse.get(tensor.id, ()))
        else:
            memory = self._memory(tensor)
        name = self._new()
        self._bindings.bind(tensor, name)
        self.inputs.append(Input(name, tensor, memory, Content("unknown"), parts))
        return name

    def _part(self, tensor: Tensor) -> Name:
        """A part of a sparse input: what a call of the step has made can't be one, so that it gets a twin."""
        made = self._bindings.on(tensor.storage) and tensor.storage not in self.memories
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
        return max(known.nbytes if known else 0, end_in_storage(tensor))

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
