"""Lifetimes of the storages that a traced step used; the trace reuses a storage id after its memory is freed.

A trace holds the tensors that went into an op and came out of it, not when memory was freed. An op that returns a
storage which is not among its inputs, and which no op inside it allocated, has allocated it: that is a birth, even if
the id was seen before. A storage that was born in the step is assumed to die after the last op that touched it.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from typing import Any

import numpy as np

from foretrace.formats.values import find_tensors
from foretrace.graph import Names
from foretrace.graph.tables import StorageTable

MAX_BYTES = 2**62
"""Size of a storage in a damaged trace that claims a larger one."""


class StorageLifetimes:
    """Storages under numbers of their own, and the number that a trace's storage id has at a row.

    >>> lifetimes = StorageLifetimes()
    >>> for row in range(2):
    ...     lifetimes.touch(row, [], [[1, 7, 0, 256, 4, "cuda:0"]])
    >>> [(s.birth, s.death, s.nbytes) for s in lifetimes.table.values()], lifetimes.number(7, 1)
    ([(0, 1, 1024), (1, 2, 1024)], 1)
    """

    def __init__(self) -> None:
        self._all: list[_Lifetime] = []
        self._current: dict[int, _Lifetime] = {}
        self._by_id: dict[int, list[_Lifetime]] = {}

    def touch(self, row: int, inputs: list[Any], outputs: list[Any], allocates: bool = True) -> None:
        """Add an op. Ops come in the order they ended, so that those inside an op come before it."""
        current = self._current
        given = []
        for tensor in find_tensors(inputs):
            _, storage_id, offset, count, itemsize, _ = tensor
            if count:  # all empty tensors share one id
                given.append(storage_id)
                lifetime = current.get(storage_id) or self._begin(-1, tensor)
                lifetime.touches.append(row)
                # a view with an offset shows that the storage reaches there; one without may be expanded
                if offset and (offset + count) * itemsize > lifetime.nbytes:
                    lifetime.nbytes = (offset + count) * itemsize
        for tensor in find_tensors(outputs):
            storage_id = tensor[1]
            if tensor[3] and storage_id not in given:
                lifetime = current.get(storage_id) or self._begin(row if allocates else -1, tensor)
                if lifetime.birth < row and allocates:
                    lifetime = self._born_inside(row, lifetime, tensor)
                lifetime.touches.append(row)

    def _begin(self, row: int, tensor: list[Any]) -> _Lifetime:
        _, storage_id, offset, count, itemsize, device = tensor
        lifetime = _Lifetime(len(self._all), row, (offset + count) * itemsize, device)
        self._all.append(lifetime)
        self._current[storage_id] = lifetime
        self._by_id.setdefault(storage_id, []).append(lifetime)
        return lifetime

    def _born_inside(self, row: int, lifetime: _Lifetime, tensor: list[Any]) -> _Lifetime:
        """The storage that an op allocated: what the ops inside it touched under the same id belongs to it."""
        inside = []
        while lifetime.touches and lifetime.touches[-1] > row:
            inside.append(lifetime.touches.pop())
        if not lifetime.touches:  # it was not touched before
            lifetime.birth = row
        else:
            lifetime = self._begin(row, tensor)
        lifetime.touches.extend(inside)
        return lifetime

    def number(self, storage_id: int, row: int) -> int:
        """The storage that an id stands for at a row; -1 for the id of empty tensors."""
        lifetimes = self._by_id.get(storage_id)
        if not lifetimes:
            return -1
        if len(lifetimes) == 1:  # the usual case, and faster than a search
            return lifetimes[0].number
        return lifetimes[max(0, bisect_right(lifetimes, row, key=_birth) - 1)].number

    @cached_property
    def table(self) -> StorageTable:
        """All storages, once all ops are added; those that existed before the step are assumed to outlive it."""
        devices = Names()
        births = np.array([one.birth for one in self._all], np.int64)
        last = np.array([max(one.touches, default=-1) for one in self._all], np.int64)
        return StorageTable(
            id=np.arange(len(self._all)),
            nbytes=np.array([min(one.nbytes, MAX_BYTES) for one in self._all], np.int64),
            device=np.array([devices.code(one.device) for one in self._all], np.int32),
            birth=births,
            death=np.where(births >= 0, last + 1, -1),
            held=np.zeros(len(self._all), bool),
            pinned=np.zeros(len(self._all), bool),
            devices=devices,
        )


class _Lifetime:
    """A storage while its touches are still being collected."""

    __slots__ = ("birth", "device", "nbytes", "number", "touches")

    def __init__(self, number: int, birth: int, nbytes: int, device: str) -> None:
        self.number, self.birth, self.nbytes, self.device = number, birth, nbytes, device
        self.touches: list[int] = []


def _birth(lifetime: _Lifetime) -> int:
    return lifetime.birth
