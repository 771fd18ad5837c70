"""The optimizer of a rank that has a part of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from foretrace.graph import Op, Tensor

Owner = TypeVar("Owner")


def lists_in(op: Op) -> list[list[Tensor]]:
    """The lists of tensors that a call takes and gives, as foreach optimizers have them.

    >>> weight = Tensor((4,), "float32")
    >>> [len(some) for some in lists_in(Op("aten::_foreach_add_", ([weight] * 3, [weight] * 3, 0.1)))]
    [3, 3]
    """
    return [a for a in (*op.args, *op.outputs) if isinstance(a, list) and a and isinstance(a[0], Tensor)]  # type: ignore[misc]


def spread(ops: Sequence[Op], owned: dict[int, Owner]) -> None:
    """Whose the optimizer's states are: of the weight or gradient that they are used with.

    >>> weight, grad, momentum = (Tensor((4,), "float32", storage=number) for number in range(3))
    >>> owners = {weight.storage: "first stage"}
    >>> spread([Op("aten::add_", (weight, momentum)), Op("aten::add_", (momentum, grad))], owners)
    >>> owners[momentum.storage], owners[grad.storage]
    ('first stage', 'first stage')
    """
    by_length: dict[int, list[Owner]] = {}
    for _ in range(2):
        for op in ops:
            lists = lists_in(op)
            for same in zip(*lists) if lists else [op.tensors + op.produced]:
                known = [owned[t.storage] for t in same if t.storage in owned]
                if known:
                    owned |= {t.storage: known[0] for t in same if t.storage >= 0 and t.storage not in owned}
            if lists and all(t.storage in owned for t in lists[0]):
                by_length[len(lists[0])] = [owned[t.storage] for t in lists[0]]
    for op in ops:
        for tensors in lists_in(op):
            for tensor, mine in zip(tensors, by_length.get(len(tensors), ())):
                owned.setdefault(tensor.storage, mine)


def only(op: Op, owned: dict[int, bool]) -> Op | None:
    """A call of the optimizer over what is ours; None where that is nothing.

    >>> weights = [Tensor((4,), "float32", storage=number) for number in range(3)]
    >>> ours = only(Op("aten::_foreach_mul_", (weights, 0.9)), {0: True, 1: False, 2: True})
    >>> [tensor.storage for tensor in ours.tensors]
    [0, 2]
    """
    lists = lists_in(op)
    if not lists:
        mine = [owned[t.storage] for t in (*op.tensors, *op.produced) if t.storage in owned]
        return op if not mine or any(mine) else None
    count = len(lists[0])
    keep = [any(owned.get(one[i].storage, True) for one in lists if i < len(one)) for i in range(count)]
    if not any(keep):
        return None

    def ours(value: Any) -> Any:
        if isinstance(value, list) and len(value) == count:
            return [item for item, kept in zip(value, keep) if kept]
        return value

    return replace(op, args=tuple(map(ours, op.args)), outputs=tuple(map(ours, op.outputs)))
