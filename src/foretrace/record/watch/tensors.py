"""Tensors of a running step: ids and lifetimes (`TensorRegistry`), and a summary of their values (`content_of`).

A tensor gets an id when it is first seen and keeps it while it lives; so does a storage. Only weak references are held:
autograd clones a gradient that is referenced elsewhere instead of taking it over, and watching would change the step.

The summary lets a replay make similar tensors. Large tensors of floats are sampled. It is taken in the step in which
lookup indices are counted, since reading values costs device work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.graph import Content, Storage, Tensor
from foretrace.graph.graph import Fact

DeviceName = Callable[[torch.Tensor], str]
NOWHERE = "meta"
"""Device of a fake tensor's storage until the tensor itself is seen."""
EXACT = 4
"""A tensor of at most so many elements is a count, a scale or a seed: its values control the step and are saved."""
SAMPLE = 1 << 16
LARGEST_MASK = 1 << 24
LONGEST_TRIANGLE = 1 << 20
MANY_ZEROS = 0.02
"""From this share on, exact zeros are part of the summary."""


COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def stored_elements(tensor: torch.Tensor) -> int:
    """How many elements a sparse matrix stores; -1 of others, as of gradients of lookups, whose rows vary.

    >>> stored_elements(torch.eye(3).to_sparse()), stored_elements(torch.eye(3).to_sparse_csr())
    (3, 3)
    """
    with _disable_current_modes():  # asking is no call of the job
        if tensor.layout == torch.sparse_coo:
            return tensor._values().numel() if tensor.sparse_dim() > 1 else -1
        return tensor.values().numel() if tensor.layout in COMPRESSED else -1


class TensorRegistry:
    """Ids, descriptions and lifetimes of tensors and storages.

    >>> registry = TensorRegistry()
    >>> registry.describe(torch.zeros(2, 3)).shape
    (2, 3)
    """

    def __init__(
        self,
        device_name: DeviceName = lambda tensor: str(tensor.device),
        is_pinned: Callable[[torch.Tensor], bool] = lambda tensor: False,
    ) -> None:
        self.storages: dict[int, Storage] = {}
        self.now = -1
        """Index of the op that runs now; what is born belongs to it."""
        self._device_name, self._is_pinned = device_name, is_pinned
        self._tensors: dict[int, tuple[int, weakref.ref[torch.Tensor]]] = {}
        self._living: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._before: dict[int, int] = {}
        self._next_tensor = 0
        self._freed: list[int] = []

    def describe(self, tensor: torch.Tensor) -> Tensor:
        """Shape, type, device, layout and ids of a tensor, as an op gets it."""
        strided = tensor.layout == torch.strided
        device = self._device_name(tensor)
        storage = self.storage_id(tensor.untyped_storage(), device) if strided else -1
        if storage >= 0 and self._is_pinned(tensor):
            self.storages[storage].pinned = True
        return Tensor(
            shape=tuple(int(n) for n in tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=device,
            stride=tuple(int(n) for n in tensor.stride()) if strided else None,
            offset=int(tensor.storage_offset()) if strided else 0,
            id=self.tensor_id(tensor),
            storage=storage,
            layout=str(tensor.layout).removeprefix("torch."),
            stored=-1 if strided else stored_elements(tensor),
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

    def hold(self, tensor: torch.Tensor) -> None:
        """A module holds a tensor: a weight or a buffer; one that no call uses takes memory, too."""
        storage = tensor.untyped_storage()
        known = self._living.get(storage._cdata)
        if known is None and storage.nbytes():
            self.now = -1
            self._born(storage, int(storage.nbytes()), self._device_name(tensor))
            known = self._living[storage._cdata]
        if known is not None:
            self.storages[known[0]].held = True

    def resized(self, storage: torch.UntypedStorage, nbytes: int) -> tuple[int, int]:
        """A storage is about to be resized: the old one ends and a new one begins. Their ids."""
        old = self.storage_id(storage, str(storage.device))
        self._freed.append(old)
        new = self._born(storage, nbytes, self.storages[old].device)
        self._before[new] = old
        return old, new

    def _found(self, number: int | None, device: str) -> None:
        """Set the device of a storage, and of those it was resized from, where it was unknown."""
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


def content_of(tensor: torch.Tensor) -> Content | None:
    """A summary of a tensor's values; None where it has none.

    >>> content_of(torch.arange(10, 40, 5))
    Content(kind='arange', facts={'start': 10, 'step': 5, 'period': 6})
    >>> content_of(torch.tensor([5, 5, 5, 9, 9, 7])).facts["reuse"]
    [1, 2]
    """
    if tensor.layout != torch.strided or not tensor.numel() or tensor.is_complex() or tensor.is_quantized:
        return None
    if tensor.numel() <= EXACT:
        return Content("values", {"values": tensor.flatten().tolist()})
    mask = _triangle(tensor)
    if mask is not None:
        return mask
    if tensor.dtype == torch.bool:
        share = float(_sample(tensor).float().mean())
        return _same(bool(share)) if share in (0.0, 1.0) else _either(False, True, share)
    if tensor.is_floating_point():
        return _of_floats(_sample(tensor).double())
    return _of_integers(tensor)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Elements from all over a tensor, at most `SAMPLE`; including those between its own where it is not dense."""
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    stride = -(-extent // SAMPLE)
    return tensor.as_strided((-(-extent // stride),), (stride,), tensor.storage_offset())


def _same(value: bool | int | float) -> Content:
    return Content("constant", {"value": value})


def _either(one: bool | int | float, other: bool | int | float, share: float) -> Content:
    return Content("either", {"one": one, "other": other, "share": share})


def _of_floats(sample: torch.Tensor) -> Content:
    low, high = float(sample.min()), float(sample.max())
    if low == high:
        return _same(low)
    is_high = sample == high
    if bool((is_high | (sample == low)).all()):
        return _either(low, high, float(is_high.double().mean()))
    finite = sample[sample.isfinite()]
    if len(finite) < 2:
        return _same(0.0)
    zeros = float((finite == 0).double().mean())
    rest = finite[finite != 0] if zeros > MANY_ZEROS else finite
    low, high, mean = float(rest.min()), float(rest.max()), float(rest.mean())
    facts = {"zeros": zeros} if zeros > MANY_ZEROS else {}
    if low >= 0:  # second moments, targets, probabilities: of the same mean, and never negative
        return _rounded("uniform", {"low": low, "high": max(low, 2 * mean - low), **facts})
    return _rounded("normal", {"mean": mean, "std": float(rest.std()), "low": low, "high": high, **facts})


def _rounded(kind: str, facts: dict[str, float]) -> Content:
    """Statistics of a sample, to four digits: a sample gives no more."""
    return Content(kind, {name: float(f"{value:.4g}") for name, value in facts.items()})


def _of_integers(tensor: torch.Tensor) -> Content:
    flat = tensor.flatten().long()
    low, high = int(flat.min()), int(flat.max())
    if low == high:
        return _same(low)
    progression = _arange(tensor, flat)
    if progression is not None:
        return progression
    pairs = _tril(tensor)
    if pairs is not None:
        return pairs
    differences = flat.diff()
    ascending = bool((differences >= 0).all())
    if ascending and int(flat[0]) == 0 and tensor.dim() == 1:
        return Content("offsets", {"first": 0, "last": high, "steps": histogram(differences)})
    classes = flat[flat != low] if low < 0 else flat  # what is below zero means "no class", as -100 does
    hits = torch.unique(classes, return_counts=True)[1]
    facts: dict[str, Fact] = {"low": int(classes.min()), "high": high, "unique": len(hits), "reuse": histogram(hits)}
    if len(classes) < len(flat):
        facts |= {"none": low, "nones": len(flat) - len(classes)}
    return Content("ids", facts | {"sorted": True} if ascending else facts)


def _arange(tensor: torch.Tensor, flat: torch.Tensor) -> Content | None:
    """Positions: each row of the last dimension, or everything at once, goes up by the same step."""
    for period in {flat.numel(), int(tensor.shape[-1])}:
        start, step = int(flat[0]), int(flat[1] - flat[0]) if period > 1 else 0
        if step and bool((flat == start + step * (torch.arange(len(flat), device=flat.device) % period)).all()):
            return Content("arange", {"start": start, "step": step, "period": period})
    return None


def _tril(places: torch.Tensor) -> Content | None:
    """Indices of the lower triangle of a square, as feature interactions use them, or one coordinate of them."""
    count = places.shape[-1]
    if places.dim() > 2 or (places.dim() == 2 and len(places) != 2) or count > LONGEST_TRIANGLE:
        return None
    for offset in (-1, 0):
        side = round((2 * count) ** 0.5 + (0.5 if offset else -0.5))
        if side < 2 or side * (side + 1 + 2 * offset) // 2 != count:
            continue
        pairs = torch.tril_indices(side, side, offset, device=places.device)
        for row, coordinate in enumerate((pairs[0], pairs[1], pairs)):
            if torch.equal(places.long(), coordinate):
                return Content("tril", {"side": side, "offset": offset, "row": row})
    return None


def _triangle(tensor: torch.Tensor) -> Content | None:
    """A causal mask: one value on and below the diagonal of the last two dimensions, another above."""
    shape = tensor.shape
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < 3 or tensor.numel() > LARGEST_MASK:
        return None
    below, above = tensor[(..., -1, 0)].flatten()[0], tensor[(..., 0, -1)].flatten()[0]
    if bool(below == above):
        return None
    lower = torch.ones(shape[-2:], dtype=torch.bool, device=tensor.device).tril()
    if not bool((tensor == torch.where(lower, below, above)).all()):
        return None
    return Content("triangle", {"below": below.item(), "above": above.item()})


def histogram(counts: torch.Tensor) -> list[int]:
    """How many counts lie in each doubling from 1 on; zeros are left out.

    >>> histogram(torch.tensor([1, 1, 2, 3, 9, 0]))
    [2, 2, 0, 1]
    """
    positive = counts[counts > 0]
    if not len(positive):
        return []
    found: Any = torch.bincount(torch.frexp(positive.double())[1].long() - 1).tolist()
    return [int(n) for n in found]
