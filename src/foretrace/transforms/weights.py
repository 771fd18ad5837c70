"""Weights and gradients of a step, and optimizer calls restricted to the weights that one rank holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from foretrace.graph import ForetraceError, Op, Tensor, tensors_in

Owner = TypeVar("Owner")


@dataclass(frozen=True)
class Gradient:
    """A gradient that the optimizer reads."""

    tensor: Tensor
    ready: int
    """Row of the call that completes it."""
    module: str
    """The module whose backward made it."""


@dataclass
class Weights:
    """The weights of a step by storage, and their gradients in the order in which backward completes them."""

    weights: dict[int, Tensor] = field(default_factory=dict)
    modules: dict[int, list[str]] = field(default_factory=dict)
    """Modules whose forward reads each weight."""
    gradients: list[Gradient] = field(default_factory=list)
    in_model_order: list[Gradient] = field(default_factory=list)
    """The same, in the order in which the optimizer reads them."""

    @property
    def storages(self) -> set[int]:
        """Storages of the gradients."""
        return {gradient.tensor.storage for gradient in self.gradients}

    def without(self, others: Collection[int]) -> Weights:
        """All weights and gradients except those in some storages."""
        return Weights(
            {storage: weight for storage, weight in self.weights.items() if storage not in others},
            {storage: modules for storage, modules in self.modules.items() if storage not in others},
            [gradient for gradient in self.gradients if gradient.tensor.storage not in others],
            [gradient for gradient in self.in_model_order if gradient.tensor.storage not in others],
        )


def weights_of(ops: Sequence[Op], source: str = "") -> Weights:
    """Find the weights: they exist before the step, are read in forward and written by the optimizer.

    >>> w, x = Tensor((4, 4), "float32", id=0, storage=0), Tensor((2, 4), "float32", id=1, storage=1)
    >>> y, g = Tensor((2, 4), "float32", id=2, storage=2), Tensor((4, 4), "float32", id=3, storage=3)
    >>> found = weights_of([
    ...     Op("aten::mm", (x, w), outputs=(y,), phase="forward", module="net.up"),
    ...     Op("aten::mm", (x, y), outputs=(g,), phase="backward", module="net.up"),
    ...     Op("aten::add_", (w, g), outputs=(w,), phase="optimizer")])
    >>> list(found.weights), [(g.tensor.shape, g.ready) for g in found.gradients]
    ([0], [((4, 4), 1)])
    """
    scan = _Scan()
    for row, op in enumerate(ops):
        scan.add(row, op)
    found = scan.found
    found.modules = {storage: scan.modules[storage] for storage in found.weights}
    found.in_model_order = list(scan.gradients.values())
    found.gradients = sorted(found.in_model_order, key=lambda gradient: gradient.ready)
    if not found.weights or not found.gradients:
        raise ForetraceError(
            f"{source or 'the graph'} updates no weights from gradients",
            "Give a whole training step: forward, backward and optimizer.",
        )
    return found


def reject_sparse_gradients(ops: Sequence[Op], source: str = "") -> None:
    """Raise for a step with sparse gradients, which DDP over NCCL and FSDP do not support.

    >>> x = Tensor((4,), "float32", id=0, storage=0)
    >>> reject_sparse_gradients([Op("aten::relu", (x,), outputs=(x,), phase="backward")])
    """
    made = {t.id for op in ops if op.phase == "backward" for t in op.produced if t.layout != "strided"}
    read = {t.id for op in ops if op.phase == "optimizer" for t in op.tensors} & made
    if read:
        raise ForetraceError(
            f"{source or 'the graph'} has {len(read)} sparse gradients, which data parallel ranks can't reduce: NCCL "
            "has no all_reduce of sparse tensors",
            "Add tables, which puts each embedding table on one rank (--parallel data=8,tables), or create the tables "
            "with sparse=False.",
        )


class _Scan:
    """Collects weights and gradients, call by call."""

    def __init__(self) -> None:
        self.found = Weights()
        self.gradients: dict[tuple[int, int], Gradient] = {}
        """By storage and offset: FSDP2 scatters several into one storage."""
        self.modules: dict[int, list[str]] = {}
        self.born: set[int] = set()
        self.read: dict[int, Tensor] = {}
        """Preexisting tensors that forward reads, by storage."""
        self.written: dict[int, tuple[int, str]] = {}
        """The last backward call that makes or changes a storage, and its module."""

    def add(self, row: int, op: Op) -> None:
        """Process one call."""
        made = {t.storage for t in op.produced}
        if op.phase == "forward":
            self._forward(op)
        elif op.phase == "backward":
            changed = {t.storage for t in written_in_place(op)}
            for storage in changed | {s for s in made if s in self.written or self._is_new(s)}:
                module = op.module or self.written.get(storage, (0, ""))[1]
                self.written[storage] = (row, module)
        elif op.phase == "optimizer":
            self._update(op)
        self.born |= made - self.read.keys()

    def _is_new(self, storage: int) -> bool:
        return storage not in self.born and storage not in self.read

    def _forward(self, op: Op) -> None:
        for tensor in op.tensors:
            if tensor.storage not in self.born and tensor.numel:
                self.read.setdefault(tensor.storage, tensor)
                self.modules.setdefault(tensor.storage, []).append(op.module)

    def _update(self, op: Op) -> None:
        for tensor in op.tensors:
            place = tensor.storage, tensor.offset
            if tensor.storage >= 0 and tensor.storage in self.written and place not in self.gradients:
                ready, module = self.written[tensor.storage]
                self.gradients[place] = Gradient(tensor, ready, module)
        for tensor in written_in_place(op):  # in the optimizer's order, which is the model's
            if tensor.storage in self.read:
                self.found.weights.setdefault(tensor.storage, self.read[tensor.storage])


def written_in_place(op: Op) -> list[Tensor]:
    """The tensors that a call writes in place.

    >>> x = Tensor((4,), "float32", id=0, storage=0)
    >>> written_in_place(Op("aten::_foreach_add_", ([x], 1.0))) == [x], written_in_place(Op("aten::add", (x, 1.0)))
    (True, [])
    """
    changed = tensors_in(op.kwargs["out"]) if "out" in op.kwargs else []
    return [*changed, *tensors_in(op.args[0])] if op.name.endswith("_") and op.args else changed


def tensor_lists(op: Op) -> list[list[Tensor]]:
    """The tensor lists among a call's arguments and results, as foreach optimizers have them.

    >>> weight = Tensor((4,), "float32")
    >>> [len(some) for some in tensor_lists(Op("aten::_foreach_add_", ([weight] * 3, [weight] * 3, 0.1)))]
    [3, 3]
    """
    return [a for a in (*op.args, *op.outputs) if isinstance(a, list) and a and isinstance(a[0], Tensor)]  # type: ignore[misc]


def propagate_owners(ops: Sequence[Op], owned: dict[int, Owner]) -> None:
    """Extend owners of weights or gradients, by storage, to the optimizer states that are used with them.

    >>> weight, grad, momentum = (Tensor((4,), "float32", storage=number) for number in range(3))
    >>> owners = {weight.storage: "first stage"}
    >>> propagate_owners([Op("aten::add_", (weight, momentum)), Op("aten::add_", (momentum, grad))], owners)
    >>> owners[momentum.storage], owners[grad.storage]
    ('first stage', 'first stage')
    """
    by_length: dict[int, list[Owner]] = {}
    for _ in range(2):
        for op in ops:
            lists = tensor_lists(op)
            for related in zip(*lists) if lists else [op.tensors + op.produced]:
                known = [owned[t.storage] for t in related if t.storage in owned]
                if known:
                    owned |= {t.storage: known[0] for t in related if t.storage >= 0 and t.storage not in owned}
            if lists and all(t.storage in owned for t in lists[0]):
                by_length[len(lists[0])] = [owned[t.storage] for t in lists[0]]
    for op in ops:
        for tensors in tensor_lists(op):
            for tensor, owner in zip(tensors, by_length.get(len(tensors), ())):
                owned.setdefault(tensor.storage, owner)


def restrict_update(op: Op, owned: dict[int, bool]) -> Op | None:
    """An optimizer call over the owned tensors only; None if it has none.

    ``owned`` says of each storage whether this rank owns it; storages that are not in it are owned.

    >>> weights = [Tensor((4,), "float32", storage=number) for number in range(3)]
    >>> update = restrict_update(Op("aten::_foreach_mul_", (weights, 0.9)), {0: True, 1: False, 2: True})
    >>> [tensor.storage for tensor in update.tensors]
    [0, 2]
    """
    lists = tensor_lists(op)
    if not lists:
        mine = [owned[t.storage] for t in (*op.tensors, *op.produced) if t.storage in owned]
        return op if not mine or any(mine) else None
    count = len(lists[0])
    keep = [any(owned.get(one[i].storage, True) for one in lists if i < len(one)) for i in range(count)]
    if not any(keep):
        return None

    def restrict(value: Any) -> Any:
        if isinstance(value, list) and len(value) == count:
            return [item for item, kept in zip(value, keep) if kept]
        return value

    return replace(op, args=tuple(map(restrict, op.args)), outputs=tuple(map(restrict, op.outputs)))
