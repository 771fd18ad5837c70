"""Weights and gradients of a step, and optimizer calls restricted to the weights that one rank holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from foretrace.graph import ForetraceError, Op, Tensor, tensors_in
from foretrace.transforms.dataflow import with_elements

Owner = TypeVar("Owner")
FULL = "float32"


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
    """The gradients in the order in which the optimizer reads them."""

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
    """Find the weights: they exist before the step, are read in forward and written by the optimizer."""
    found = _scan(ops)
    if not found.weights or not found.gradients:
        raise ForetraceError(
            f"{source or 'the graph'} updates no weights from gradients",
            "Give a whole training step: forward, backward and optimizer.",
        )
    return found


def _scan(ops: Sequence[Op]) -> Weights:
    found = Weights()
    gradients: dict[tuple[int, int], Gradient] = {}  # by storage and offset: FSDP2 scatters several into one storage
    modules: dict[int, list[str]] = {}
    born: set[int] = set()
    read: dict[int, Tensor] = {}  # preexisting tensors that forward reads, by storage
    written: dict[int, tuple[int, str]] = {}  # the last backward call that makes or changes a storage, and its module
    for row, op in enumerate(ops):
        made = {t.storage for t in op.produced}
        if op.phase == "forward":
            for tensor in op.tensors:
                if tensor.storage not in born and tensor.numel:
                    read.setdefault(tensor.storage, tensor)
                    modules.setdefault(tensor.storage, []).append(op.module)
        elif op.phase == "backward":
            new = {s for s in made if s in written or (s not in born and s not in read)}
            for storage in new | {t.storage for t in written_in_place(op)}:
                written[storage] = (row, op.module or written.get(storage, (0, ""))[1])
        elif op.phase == "optimizer":
            for tensor in op.tensors:
                if tensor.storage >= 0 and tensor.storage in written:
                    gradient = Gradient(tensor, *written[tensor.storage])
                    gradients.setdefault((tensor.storage, tensor.offset), gradient)
            for tensor in written_in_place(op):  # in the optimizer's order, which is the model's
                if tensor.storage in read:
                    found.weights.setdefault(tensor.storage, read[tensor.storage])
        born.update(storage for storage in made if storage not in read)
    found.modules = {storage: modules[storage] for storage in found.weights}
    found.in_model_order = list(gradients.values())
    found.gradients = sorted(found.in_model_order, key=lambda gradient: gradient.ready)
    return found


def reject_sparse_gradients(ops: Sequence[Op], source: str = "") -> None:
    """Raise for a step with sparse gradients, which DDP over NCCL and FSDP do not support."""
    made = {t.id for op in ops if op.phase == "backward" for t in op.produced if t.layout != "strided"}
    read = {t.id for op in ops if op.phase == "optimizer" for t in op.tensors} & made
    if read:
        raise ForetraceError(
            f"{source or 'the graph'} has {len(read)} sparse gradients, which data parallel ranks can't reduce: NCCL "
            "has no all_reduce of sparse tensors",
            "Add tables, which puts each embedding table on one rank (--parallel data=8,tables), or create the tables "
            "with sparse=False.",
        )


def written_in_place(op: Op) -> list[Tensor]:
    """The tensors that a call writes in place."""
    changed = tensors_in(op.kwargs["out"]) if "out" in op.kwargs else []
    return [*changed, *tensors_in(op.args[0])] if op.name.endswith("_") and op.args else changed


def tensor_lists(op: Op) -> list[list[Tensor]]:
    """The tensor lists among a call's arguments and results, as foreach optimizers have them."""
    return [a for a in (*op.args, *op.outputs) if isinstance(a, list) and a and isinstance(a[0], Tensor)]  # type: ignore[misc]


def propagate_owners(ops: Sequence[Op], owned: dict[int, Owner]) -> None:
    """Extend owners of weights or gradients, by storage, to the optimizer states that are used with them."""
    _propagate_sparse(ops, owned)
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


def _propagate_sparse(ops: Sequence[Op], owned: dict[int, Owner]) -> None:
    """Extend owners along sparse tensors, which have no storage of their own: to their ids, their values and, as under
    SparseAdam, to the states that are updated by them. No two weights share any of those.
    """
    groups = [
        {t.storage if t.storage >= 0 else -2 - t.id for t in (*op.tensors, *op.produced) if t.numel > 1}
        for op in ops
        if any(t.layout == "sparse_coo" for t in (*op.tensors, *op.produced)) and not tensor_lists(op)
    ]
    found = dict(owned)
    while True:
        before = len(found)
        for group in groups:
            known = [found[key] for key in group if key in found]
            found |= {key: known[0] for key in group if known and key not in found}
        if len(found) == before:
            break
    owned |= {key: owner for key, owner in found.items() if key >= 0}


def restrict_update(op: Op, owned: dict[int, bool]) -> Op | None:
    """An optimizer call over the owned tensors only; None if it has none.

    ``owned`` says of each storage whether this rank owns it; storages that are not in it are owned.
    """
    lists = tensor_lists(op)
    if not lists:
        mine = [owned[t.storage] for t in (*op.tensors, *op.produced) if t.storage in owned]
        return op if not mine or any(mine) else None
    keep = [any(owned.get(one[i].storage, True) for one in lists if i < len(one)) for i in range(len(lists[0]))]
    return with_elements(op, keep) if any(keep) else None
