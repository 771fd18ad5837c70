"""A step in which one dimension of some tensors is divided: what follows for all the others.

Each call hands the division on by a rule of its own (`split_rules`). What was there before the step, or is made from
nothing, is divided where a call needs it so; then the calls are gone through again, until all agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foretrace.graph import ForetraceError, Op, Tensor
from foretrace.graph.op import RESIZE, with_tensors

PARTIAL = -1
"""Instead of a dimension: whole in shape, but to be summed over all parts."""

Key = tuple[int, int, tuple[int, ...], tuple[int, ...] | None]
Rule = Callable[["Splitting", Op], "Op | None"]


def key_of(tensor: Tensor) -> Key:
    """What looks at the same place in the same way is one: autograd's saved tensors come back under new ids.

    >>> key_of(Tensor((4,), "float32", id=3, storage=1)) == key_of(Tensor((4,), "float32", id=9, storage=1))
    True
    """
    return tensor.storage, tensor.offset, tensor.shape, tensor.stride


class ConflictError(Exception):
    """A call can't work on a divided tensor."""

    def __init__(self, op: Op, tensor: Tensor, why: str) -> None:
        self.op, self.tensor, self.why = op, tensor, why
        super().__init__(why)


@dataclass
class Splitting:
    """How tensors are divided over so many parts, as far as the calls gone through tell.

    >>> from foretrace.transforms.parallel.split_rules import RULES, elementwise
    >>> x, w, y = (Tensor((8, 8), "float32", stride=(8, 1), id=number, storage=number) for number in range(3))
    >>> columns = Splitting(2, RULES, elementwise, wanted={key_of(w): 1})
    >>> product = columns.through(Op("aten::mm", (x, w), outputs=(y,)))
    >>> [tensor.shape for tensor in (*product.tensors, *product.produced)]
    [(8, 8), (8, 4), (8, 4)]
    """

    ways: int
    rules: dict[str, Rule]
    otherwise: Rule
    """The rule of calls that have none of their own."""
    wanted: dict[Key, int] = field(default_factory=dict)
    """What must be divided although no call says so: inputs, weights, what is made from nothing."""
    given: dict[int, Tensor] = field(default_factory=dict)
    """What was there before the step, by storage, as it was first seen."""
    made_free: set[Key] = field(default_factory=set)
    """Results that may be divided on demand."""
    casts: dict[int, Tensor] = field(default_factory=dict)
    """Storages that hold a weight in another precision, and the weight."""
    states: dict[Key, int] = field(default_factory=dict)
    origin: dict[Key, int] = field(default_factory=dict)
    """The storage whose division led to that of each tensor."""
    lead: dict[Key, int] = field(default_factory=dict)
    """Where a dimension was made of several, how many places stand before the divided one: 1 if not told."""
    cause: int = -1
    again: bool = False
    """Whether something must be divided that calls gone through already took for whole: to begin anew."""

    def state(self, tensor: Tensor) -> int | None:
        """The dimension that is divided, or PARTIAL; None for a tensor that is whole."""
        key = key_of(tensor)
        return self.states.get(key, self.wanted.get(key))

    def split(self, tensor: Tensor) -> int | None:
        """The dimension that is divided; None for one that is whole in shape."""
        state = self.state(tensor)
        return None if state == PARTIAL else state

    def set(self, tensor: Tensor, dim: int | None, op: Op, lead: int | None = None) -> None:
        """A result is divided so."""
        key = key_of(tensor)
        if dim is None:
            self.states.pop(key, None)
            return
        self.lead[key] = self._inherited(tensor.shape[dim], op) if lead is None and dim >= 0 else lead or 1
        if dim >= 0 and tensor.shape[dim] % self.ways:
            raise ConflictError(op, tensor, f"{tensor.shape[dim]} is not divisible by {self.ways}")
        self.states[key], self.origin[key] = dim, self.cause

    def whole(self, storage: int) -> None:
        """What was to be summed is summed, however one looks at it."""
        for key in [key for key, state in self.states.items() if key[0] == storage and state == PARTIAL]:
            del self.states[key]

    def _inherited(self, size: int, op: Op) -> int:
        """A dimension of the same size as one that was given is made of the same."""
        for tensor in op.tensors:
            if (dim := self.split(tensor)) is not None and tensor.shape[dim] == size:
                return self.lead.get(key_of(tensor), 1)
        return 1

    def base(self, tensor: Tensor) -> Tensor | None:
        """What was there before the step that a tensor looks at, or is a cast of; None for anything else."""
        return self.given.get(tensor.storage, self.casts.get(tensor.storage))

    def note_cast(self, op: Op) -> None:
        """Autocast reads weights through copies of them."""
        if op.name == "aten::_to_copy" and (base := self.base(op.tensors[0])) is not None:
            self.casts[op.produced[0].storage] = base

    def want(self, tensor: Tensor, dim: int, op: Op) -> None:
        """A call needs an argument divided so: fine where it is, or can be."""
        if self.split(tensor) == dim:
            return None
        base = self.base(tensor)
        if base is not None and self.state(tensor) is None:
            turned = _dim_of_base(base, tensor, dim)
            if turned is not None and base.shape[turned] % self.ways == 0:
                return self._demand(base, turned, tensor, dim)
        if key_of(tensor) in self.made_free and tensor.shape[dim] % self.ways == 0:
            return self._demand(tensor, dim, tensor, dim)
        raise ConflictError(op, tensor, "it meets a tensor that can't be divided alike")

    def _demand(self, base: Tensor, base_dim: int, tensor: Tensor, dim: int) -> None:
        self.wanted[key_of(base)], self.origin[key_of(base)] = base_dim, self.cause
        self.states[key_of(tensor)], self.origin[key_of(tensor)] = dim, self.cause
        self.again = True

    def divided(self, tensor: Tensor) -> Tensor:
        """The tensor with its part of the dimension."""
        dim = self.split(tensor)
        if dim is None:
            return tensor
        shape = tuple(size // self.ways if at == dim else size for at, size in enumerate(tensor.shape))
        return replace(tensor, shape=shape, stride=self._closer(tensor, dim), offset=tensor.offset // self.ways)

    def _closer(self, tensor: Tensor, dim: int) -> tuple[int, ...] | None:
        """The strides, where those that step over the divided dimension step over a part of it."""
        if tensor.stride is None:
            return None
        over = tensor.stride[dim] * tensor.shape[dim]
        return tuple(step // self.ways if step >= over > 0 else step for step in tensor.stride)

    def touched(self, op: Op) -> bool:
        """Whether a call reads or makes something that is divided or to be summed."""
        return any(self.state(t) is not None for t in op.tensors) or any(key_of(t) in self.wanted for t in op.produced)

    def untouched(self, op: Op) -> Op:
        """A call that reads nothing divided; what it makes from nothing may be, later."""
        if (op.name in self.rules and not op.tensors and op.produced) or op.name.endswith("embedding_dense_backward"):
            self.made_free.add(key_of(op.produced[0]))
        return op

    def through(self, op: Op) -> Op:
        """A call with its arguments and results divided."""
        for tensor in op.tensors:
            if (at := self.state(tensor)) is not None:
                self.cause = self.origin.get(key_of(tensor), -1)
                if at >= 0:
                    break
        changed = self.rules.get(op.name, self.otherwise)(self, op)
        return with_tensors(changed or op, self.divided)

    def refused(self, error: ConflictError, what: str) -> ForetraceError:
        """What to say of a call that can't be divided."""
        op, tensor = error.op, error.tensor
        where = f" in {op.module}" if op.module else ""
        return ForetraceError(
            f"{what}: {op.name}{where} can't be divided by {self.ways}, over {list(tensor.shape)}: {error.why}",
            "Choose a number that divides it, or give a step that is written for it.",
        )


def preexisting_tensors(ops: Sequence[Op]) -> dict[int, Tensor]:
    """What was there before a step, by storage, as it was first seen.

    >>> given, made = (Tensor((4,), "float32", id=number, storage=number) for number in (1, 2))
    >>> list(preexisting_tensors([Op("aten::relu", (given,), outputs=(made,)), Op("aten::relu", (made,))]))
    [1]
    """
    born: set[int] = set()
    given: dict[int, Tensor] = {}
    for op in ops:
        for tensor in op.tensors:
            if tensor.storage >= 0 and tensor.storage not in born:
                given.setdefault(tensor.storage, tensor)
        born |= {t.storage for t in op.produced} - given.keys()
        if op.name == RESIZE and isinstance(op.args[1], int):
            born.add(op.args[1])  # FSDP2's whole weights
    return given


def _dim_of_base(base: Tensor, view: Tensor, dim: int) -> int | None:
    """Which dimension of a weight is one of a look at it, or at a cast of it: itself, or transposed."""
    if view.shape == base.shape and view.stride == base.stride:
        return dim
    if len(base.shape) == 2 and view.shape == base.shape[::-1]:
        return 1 - dim
    return None


def part_size(value: Any, ways: int) -> Any:
    """A size divided; -1, which stands for whatever is left, stays.

    >>> part_size(8, 2), part_size(-1, 2)
    (4, -1)
    """
    return value // ways if isinstance(value, int) and value > 0 else value
