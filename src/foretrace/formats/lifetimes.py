"""Which storages a traced step used, and from which op to which: the trace's own ids are used again after a free.

A trace says which tensors went into an op and came out of it, not when memory was freed. An op that returns a storage
which it was not given, and which no op inside it made, has allocated it: that is a birth, even where the id was seen
before. A storage that was born in the step is taken to die after the last op that touched it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from foretrace.formats.values import tensors_among
from foretrace.graph import Storage


class Lifetimes:
    """Storages by a number of their own, and the number behind a trace's storage id at a row.

    >>> lives = Lifetimes()
    >>> for row in range(2):
    ...     lives.touch(row, [], [[1, 7, 0, 256, 4, "cuda:0"]])
    >>> [(s.birth, s.death, s.nbytes) for s in lives.storages().values()], lives.number(7, 1)
    ([(0, 1, 1024), (1, 2, 1024)], 1)
    """

    def __init__(self) -> None:
        self._lives: list[_Life] = []
        self._current: dict[int, _Life] = {}
        self._by_id: dict[int, list[_Life]] = {}

    def touch(self, row: int, inputs: list[Any], outputs: list[Any], allocates: bool = True) -> None:
        """Take in an op; ops come in the order they ended, so that those inside an op come before it."""
        current = self._current
        given = []
        for tensor in tensors_among(inputs):
            _, storage_id, offset, count, itemsize, _ = tensor
            if count:  # all empty tensors share one id
                given.append(storage_id)
                life = current.get(storage_id) or self._begin(-1, tensor)
                life.touches.append(row)
                # a view further back shows that the storage reaches there; one at its front may be expanded
                if offset and (offset + count) * itemsize > life.nbytes:
                    life.nbytes = (offset + count) * itemsize
        for tensor in tensors_among(outputs):
            storage_id = tensor[1]
            if tensor[3] and storage_id not in given:
                life = current.get(storage_id) or self._begin(row if allocates else -1, tensor)
                if life.birth < row and allocates:
                    life = self._born_inside(row, life, tensor)
                life.touches.append(row)

    def _begin(self, row: int, tensor: list[Any]) -> _Life:
        _, storage_id, offset, count, itemsize, device = tensor
        life = _Life(len(self._lives), row, (offset + count) * itemsize, device)
        self._lives.append(life)
        self._current[storage_id] = life
        self._by_id.setdefault(storage_id, []).append(life)
        return life

    def _born_inside(self, row: int, life: _Life, tensor: list[Any]) -> _Life:
        """The storage an op made: what the ops inside it touched under the same id belongs to it."""
        inside = []
        while life.touches and life.touches[-1] > row:
            inside.append(life.touches.pop())
        if not life.touches:  # nobody knew it before
            life.birth = row
        else:
            life = self._begin(row, tensor)
        life.touches.extend(inside)
        return life

    def number(self, storage_id: int, row: int) -> int:
        """The storage that an id stood for at a row; -1 for the id of empty tensors."""
        lives = self._by_id.get(storage_id)
        if not lives:
            return -1
        if len(lives) == 1:  # as of most, and quicker than to look for it
            return lives[0].number
        return lives[max(0, bisect_right(lives, row, key=_birth) - 1)].number

    def storages(self) -> dict[int, Storage]:
        """All storages; those that were there before the step are taken to outlive it."""
        return {
            life.number: Storage(
                life.number, life.nbytes, life.device, life.birth, max(life.touches) + 1 if life.birth >= 0 else -1
            )
            for life in self._lives
        }


class _Life:
    """A storage while its touches are still being collected."""

    __slots__ = ("birth", "device", "nbytes", "number", "touches")

    def __init__(self, number: int, birth: int, nbytes: int, device: str) -> None:
        self.number, self.birth, self.nbytes, self.device = number, birth, nbytes, device
        self.touches: list[int] = []


def _birth(life: _Life) -> int:
    return life.birth
