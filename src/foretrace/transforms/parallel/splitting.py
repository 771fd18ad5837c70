"""Split dimensions: one dimension of some tensors is divided over ranks or microbatches; what follows for all others.

Each call propagates the split by a rule of its own (`split_rules`). A tensor that existed before the step, or is
created by a factory, is split where a call needs it so; then the calls are processed again, until all agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.graph.op import RESIZE, with_tensors

CASTS = ("aten::_to_copy", "aten::mul", "aten::clamp")
"""Calls that a weight goes through on its way to another dtype."""
PARTIAL = -1
"""In place of a dimension: every part has the whole shape, and the parts have to be summed."""

Key: TypeAlias = tuple[int, int, tuple[int, ...], tuple[int, ...] | None]
Rule: TypeAlias = Callable[["Splitting", Op], "Op | None"]
"""Propagates the split from a call's arguments to its results; returns the call if its other arguments change."""


def key_of(tensor: Tensor) -> Key:
    """Identifies a tensor by its view of a storage: autograd's saved tensors come back under new ids."""
    return tensor.storage, tensor.offset, tensor.shape, tensor.stride


class ConflictError(Exception):
    """A call can't work on a split tensor."""

    def __init__(self, op: Op, tensor: Tensor, why: str) -> None:
        self.op, self.tensor, self.why = op, tensor, why
        super().__init__(why)


@dataclass
class Splitting:
    """How tensors are split into equal parts, as far as the calls processed so far determine it."""

    parts: int
    """Number of parts."""
    rules: dict[str, Rule]
    default_rule: Rule
    """The rule of calls that have none of their own."""
    wanted: dict[Key, int] = field(default_factory=dict)
    """Dimensions of tensors that must be split: inputs, weights, results of factories."""
    preexisting: dict[int, Tensor] = field(default_factory=dict)
    """Tensors that existed before the step, by storage, as first seen."""
    splittable: set[Key] = field(default_factory=set)
    """Results that may be split on demand."""
    casts: dict[int, Tensor] = field(default_factory=dict)
    """Storages that hold a weight in another dtype, and the weight."""
    states: dict[Key, int] = field(default_factory=dict)
    keys: dict[int, dict[Key, None]] = field(default_factory=dict)
    """Those whose state was set, by storage."""
    origin: dict[Key, int] = field(default_factory=dict)
    """The storage whose split caused that of each tensor."""
    lead: dict[Key, int] = field(default_factory=dict)
    """Where a dimension merges several, the size of those before the split one; 1 if not set."""
    padded: dict[int, int] = field(default_factory=dict)
    """Sizes that are padded before they are divided: of a vocabulary, with what it is padded to."""
    cause: int = -1
    again: bool = False
    """Whether a tensor must be split that earlier calls took for whole: the calls must be processed again."""

    def state(self, tensor: Tensor) -> int | None:
        """The split dimension, or PARTIAL; None for a whole tensor."""
        key = key_of(tensor)
        return self.states.get(key, self.wanted.get(key))

    def split_dim(self, tensor: Tensor) -> int | None:
        """The split dimension; None for a tensor of whole shape."""
        state = self.state(tensor)
        return None if state == PARTIAL else state

    def set(self, tensor: Tensor, dim: int | None, op: Op, lead: int | None = None) -> None:
        """Set the state of a result."""
        key = key_of(tensor)
        if dim is None:
            self.states.pop(key, None)
            return
        self.lead[key] = self._inherited_lead(tensor.shape[dim], op) if lead is None and dim >= 0 else lead or 1
        if dim >= 0 and not self.divides(tensor.shape[dim]):
            raise ConflictError(op, tensor, f"{tensor.shape[dim]} is not divisible by {self.parts}")
        self.states[key], self.origin[key] = dim, self.cause
        self.keys.setdefault(tensor.storage, {})[key] = None

    def set_summed(self, storage: int) -> None:
        """All views of a storage with partial results are summed now."""
        for key in self.partial_views(storage):
            del self.states[key]

    def partial_views(self, storage: int) -> list[Key]:
        """All views of a storage with partial results."""
        return [key for key in self.keys.get(storage, ()) if self.states.get(key) == PARTIAL]

    def _inherited_lead(self, size: int, op: Op) -> int:
        """The lead of an argument's split dimension of the same size."""
        for tensor in op.tensors:
            if (dim := self.split_dim(tensor)) is not None and tensor.shape[dim] == size:
                return self.lead.get(key_of(tensor), 1)
        return 1

    def base(self, tensor: Tensor) -> Tensor | None:
        """The preexisting tensor that a tensor is a view or a cast of; None if there is none."""
        return self.preexisting.get(tensor.storage, self.casts.get(tensor.storage))

    def note_cast(self, op: Op) -> None:
        """Register a cast of a weight, which autocast and layers in float8 read: those scale it by a number before."""
        given = [tensor for tensor in op.tensors if tensor.numel > 1]
        if op.name in CASTS and len(given) == 1 and (base := self.base(given[0])) is not None:
            self.casts[op.produced[0].storage] = base

    def require(self, tensor: Tensor, dim: int, op: Op) -> None:
        """A call needs an argument split along a dimension; raises `ConflictError` if that is not possible."""
        if self.split_dim(tensor) == dim:
            return None
        base = self.base(tensor)
        if base is not None and self.state(tensor) is None:
            base_dim = _dim_of_base(base, tensor, dim)
            if base_dim is not None and self.divides(base.shape[base_dim]):
                return self._demand(base, base_dim, tensor, dim)
        if key_of(tensor) in self.splittable and self.divides(tensor.shape[dim]):
            return self._demand(tensor, dim, tensor, dim)
        shape, size = list(tensor.shape), tensor.shape[dim]
        if not self.divides(size):
            raise ConflictError(
                op, tensor, f"its argument of shape {shape} has {size} of what {self.parts} ranks share"
            )
        raise ConflictError(op, tensor, f"its argument of shape {shape} is whole on every rank")

    def _demand(self, base: Tensor, base_dim: int, tensor: Tensor, dim: int) -> None:
        self.wanted[key_of(base)], self.origin[key_of(base)] = base_dim, self.cause
        self.states[key_of(tensor)], self.origin[key_of(tensor)] = dim, self.cause
        self.keys.setdefault(tensor.storage, {})[key_of(tensor)] = None
        self.again = True

    def divides(self, size: int) -> bool:
        """Whether a size can be divided, padded if need be."""
        return size % self.parts == 0 or size in self.padded

    def part_size(self, value: Any) -> Any:
        """A size divided; -1, which stands for the remaining elements, stays."""
        return self.padded.get(value, value) // self.parts if isinstance(value, int) and value > 0 else value

    def part(self, tensor: Tensor) -> Tensor:
        """One part of a tensor."""
        dim = self.split_dim(tensor)
        if dim is None:
            return tensor
        shape = tuple(self.part_size(size) if at == dim else size for at, size in enumerate(tensor.shape))
        return replace(tensor, shape=shape, stride=self._part_stride(tensor, dim), offset=tensor.offset // self.parts)

    def _part_stride(self, tensor: Tensor, dim: int) -> tuple[int, ...] | None:
        """The strides of a part: those that step over the whole split dimension step over a part of it."""
        if tensor.stride is None:
            return None
        size = tensor.shape[dim]
        over, part = tensor.stride[dim] * size, self.part_size(size)
        return tuple(step * part // size if step >= over > 0 else step for step in tensor.stride)

    def apply(self, op: Op) -> Op:
        """A call with its arguments and results split, by its rule; a call on nothing split stays."""
        read = any(self.state(tensor) is not None for tensor in op.tensors)
        if not read and not any(key_of(tensor) in self.wanted for tensor in op.produced):
            if (op.name in self.rules and not op.tensors and op.produced) or op.name.endswith(
                "embedding_dense_backward"
            ):
                self.splittable.add(key_of(op.produced[0]))  # created by a factory: may be split later
            return op
        for tensor in op.tensors:
            if (at := self.state(tensor)) is not None:
                self.cause = self.origin.get(key_of(tensor), -1)
                if at >= 0:
                    break
        changed = self.rules.get(op.name, self.default_rule)(self, op)
        return with_tensors(changed or op, self.part)

    def refused(self, error: ConflictError, what: str) -> ForetraceError:
        """The error for a call that can't be split."""
        op, tensor = error.op, error.tensor
        where = f" in {op.module}" if op.module else ""
        return ForetraceError(
            f"{what}: {op.name}{where} can't be split into {self.parts} parts, over {list(tensor.shape)}: {error.why}",
            "Choose a number that divides it, or give a step that is written for it.",
        )


def preexisting_tensors(ops: Sequence[Op]) -> dict[int, Tensor]:
    """Tensors that existed before a step, by storage, as first seen."""
    made: set[int] = set()
    found: dict[int, Tensor] = {}
    for op in ops:
        for tensor in op.tensors:
            if tensor.storage >= 0 and tensor.storage not in made:
                found.setdefault(tensor.storage, tensor)
        made.update(t.storage for t in op.produced if t.storage not in found)
        if op.name == RESIZE and isinstance(op.args[1], int):
            made.add(op.args[1])  # FSDP2's gathered weights
    return found


def _dim_of_base(base: Tensor, view: Tensor, dim: int) -> int | None:
    """The dimension of a weight that a view or a cast of it shows as another: the same, or transposed."""
    if view.shape == base.shape and view.stride == base.stride:
        return dim
    if len(base.shape) == 2 and view.shape == base.shape[::-1]:
        return 1 - dim
    return None
