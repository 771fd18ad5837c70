"""Runs recorded calls again from what is on disk, to prove that nothing of them was lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.codec import from_lines, to_lines
from foretrace.record.watch.watch import Watch
from tests.narrowing import instance


class Snapshots(Watch):
    """A watch that also keeps the bytes that were there before the step."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, torch.Tensor] = {}
        self.sparse_before: dict[int, torch.Tensor] = {}

    def describe(self, value: Any) -> Any:
        described = super().describe(value)
        if isinstance(value, torch.Tensor) and (number := instance(Tensor, described).storage) >= 0:
            storage = self.registry.storages[number]
            if storage.birth < 0 and storage.id not in self.before:
                self.before[storage.id] = _bytes_of(value).clone()
        return described


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def watched(step: Callable[[], Any]) -> tuple[Snapshots, list[Op]]:
    """The step's calls as they come back from disk, and what was there before it."""
    with Snapshots() as watch:
        step()
    return watch, from_lines(to_lines(watch.ops), "memory")


class Reexecution:
    """Runs ops on copies of the storages they were recorded on."""

    def __init__(self, before: dict[int, torch.Tensor]) -> None:
        self.storages = {number: data.clone() for number, data in before.items()}
        self.objects: dict[int, torch.Tensor] = {}

    def run(self, ops: list[Op]) -> None:
        with torch.no_grad():
            for op in ops:
                if not op.is_side_call:
                    self._call(op)

    def _call(self, op: Op) -> None:
        namespace, name = op.name.split("::")
        func = getattr(getattr(getattr(torch.ops, namespace), name), op.overload)
        result = func(*(self._real(a) for a in op.args), **{k: self._real(v) for k, v in op.kwargs.items()})
        for described, made in zip(op.outputs, result if isinstance(result, tuple) else (result,)):
            self._bind(described, made)

    def _real(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, list):
            return [self._real(item) for item in value]
        if isinstance(value, Constant):
            assert value.kind in ("dtype", "device", "layout", "memory_format"), value
            return torch.device(value.value) if value.kind == "device" else getattr(torch, value.value)
        return value

    def _tensor(self, described: Tensor) -> torch.Tensor:
        if described.storage < 0:
            return self.objects[described.id]
        data = self.storages[described.storage]
        empty = torch.empty(0, dtype=getattr(torch, described.dtype))
        return empty.set_(data.untyped_storage(), described.offset, described.shape, described.stride)

    def _bind(self, described: Any, made: Any) -> None:
        if isinstance(described, list):
            for part, value in zip(described, made):
                self._bind(part, value)
        elif isinstance(described, Tensor):
            assert tuple(made.shape) == described.shape
            self.objects[described.id] = made
            if described.storage >= 0:
                self.storages[described.storage] = _bytes_of(made)
