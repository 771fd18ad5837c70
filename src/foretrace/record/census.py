"""Who is who among the tensors of a running step.

A tensor gets an id when it is first seen and keeps it while it lives; so does a storage. Only weak references are
held: a gradient that somebody else holds is cloned by autograd instead of taken, and the step would change by being
watched.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from foretrace.graph import Storage, Tensor

DeviceName = Callable[[torch.Tensor], str]
NOWHERE = "meta"
"""Where a fake tensor's storage says that it is, until the tensor itself is seen."""


class Census:
    """Ids, descriptions and lifetimes of tensors and storages.

    >>> census = Census()
    >>> census.describe(torch.zeros(2, 3)).shape
    (2, 3)
    """

    def __init__(self, device_name: DeviceName = lambda tensor: str(tensor.device)) -> None:
        self.storages: dict[int, Storage] = {}
        self.now = -1
        """Index of the op that runs now; what is born belongs to it."""
        self._device_name = device_name
        self._tensors: dict[int, tuple[int, weakref.ref[torch.Tensor]]] = {}
        self._living: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._before: dict[int, int] = {}
        self._next_tensor = 0
        self._freed: list[int] = []

    def describe(self, tensor: torch.Tensor) -> Tensor:
        """What an op sees of a tensor."""
        strided = tensor.layout == torch.strided
        device = self._device_name(tensor)
        return Tensor(
            shape=tuple(int(n) for n in tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=device,
            stride=tuple(int(n) for n in tensor.stride()) if strided else None,
            offset=int(tensor.storage_offset()) if strided else 0,
            id=self.tensor_id(tensor),
            storage=self.storage_id(tensor.untyped_storage(), device) if strided else -1,
            layout=str(tensor.layout).removeprefix("torch."),
        )

    def freed(self) -> tuple[int, ...]:
        """Storages that died since the last call."""
        gone, self._freed = tuple(self._freed), []
        for storage in gone:
            self.storages[storage].death = self.now + 1
        return gone

    def storage_id(self, storage: torch.UntypedStorage, device: str) -> int:
        """The id of a storage; a new one where it was not seen before."""
        known = self._living.get(storage._cdata)
        if known is not None and known[1]() is not None:
            self._found(known[0], device)
            return known[0]
        return self._born(storage, int(storage.nbytes()), device)

    def resized(self, storage: torch.UntypedStorage, nbytes: int) -> tuple[int, int]:
        """A storage is about to be resized: the old one ends and a new one begins. Their ids."""
        old = self.storage_id(storage, str(storage.device))
        self._freed.append(old)
        new = self._born(storage, nbytes, self.storages[old].device)
        self._before[new] = old
        return old, new

    def _found(self, number: int | None, device: str) -> None:
        """Say where a storage is, and what it was before it was resized, where nobody knew."""
        while number is not None and self.storages[number].device == NOWHERE:
            self.storages[number].device = device
            number = self._before.get(number)

    def _born(self, storage: torch.UntypedStorage, nbytes: int, device: str) -> int:
        key, number = storage._cdata, len(self.storages)
        self.storages[number] = Storage(number, nbytes, device, birth=self.now)
        self._living[key] = (number, weakref.ref(storage, lambda ref: self._storage_died(key, number)))
        return number

    def _storage_died(self, key: int, number: int) -> None:
        if self._living.get(key, (None,))[0] == number:
            del self._living[key]
        self._freed.append(number)

    def tensor_id(self, tensor: torch.Tensor) -> int:
        """The id of a tensor; a new one where it was not seen before."""
        key = id(tensor)
        known = self._tensors.get(key)
        if known is not None and known[1]() is tensor:
            return known[0]
        number = self._next_tensor
        self._next_tensor += 1
        self._tensors[key] = (number, weakref.ref(tensor, lambda ref: self._tensor_died(key, number)))
        return number

    def _tensor_died(self, key: int, number: int) -> None:
        if self._tensors.get(key, (None,))[0] == number:
            del self._tensors[key]
