"""Calls that the dispatcher sees as one and that PyTorch makes of several others: each is priced as those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from foretrace.cost_models.families.convolutions import BACKWARD, MASK, gradients
from foretrace.cost_models.families.values import dense
from foretrace.graph import Op, Tensor, Value

HALVES = {"bfloat16", "float16"}
"""Dtypes that have no room for each other: together they become float32."""


def parts_of(op: Op, kind: str = "cuda") -> Sequence[Op]:
    """What a call is made of on a device of some kind: itself where nothing else is known.

    >>> [part.name for part in parts_of(Op("aten::_safe_softmax", (Tensor((8, 8), "float32"), -1)))]
    ['aten::_softmax', 'aten::eq', 'aten::all', 'aten::fill_', 'aten::where']
    >>> [part.name for part in parts_of(Op("aten::relu"))]
    ['aten::relu']
    """
    made_of = _MADE_OF.get(op.name) or (_MADE_ON_GPUS.get(op.name) if kind == "cuda" else None)
    return made_of(op, op.tensors[0]) if made_of and op.tensors else (op,)


def _safe_softmax(op: Op, scores: Tensor) -> Sequence[Op]:
    """Zeros instead of NaNs for rows that are masked from end to end."""
    dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", -1)
    mask = replace(scores, dtype="bool", storage=-1)
    row = replace(mask, shape=(*scores.shape[:-1], 1), stride=None)
    zero = Tensor((), scores.dtype, device=scores.device)
    return (
        Op("aten::_softmax", (scores, dim, False), overload="default"),
        Op("aten::eq", (scores, float("-inf")), overload="Scalar", outputs=(mask,)),
        Op("aten::all", (mask, dim, True), overload="dim", outputs=(row,)),
        Op("aten::fill_", (zero, 0.0), overload="Scalar"),
        Op("aten::where", (row, zero, scores), overload="self", outputs=(scores,)),
    )


def _gradients(op: Op, grad: Tensor) -> Sequence[Op]:
    """Each gradient by a call of the library; None stands for one that the same call has made before.

    >>> [gradients(part) for part in parts_of(Op(BACKWARD, (Tensor((8, 4, 9, 9), "float32"),)))]
    [[True, False, False], [None, True, False]]
    """
    wanted = gradients(op)
    if wanted.count(True) < 2:
        return (op,)
    masks: list[list[Value]] = [
        [*(None if each else False for each in wanted[:place]), True, *(False for _ in wanted[place + 1 :])]
        for place, each in enumerate(wanted)
        if each
    ]
    return [replace(op, args=op.args[:MASK], kwargs={**op.kwargs, "output_mask": mask}) for mask in masks]


def _copies(op: Op, first: Tensor) -> Sequence[Op]:
    """A join of tensors of several dtypes: each is copied to its place in the result.

    >>> joined = [Tensor((4, 2), "float32"), Tensor((4, 3), "bfloat16")]
    >>> [(part.name, part.args[0].dtype, part.args[0].stride) for part in parts_of(Op("aten::cat", (joined, 1)))]
    [('aten::copy_', 'float32', (5, 1)), ('aten::copy_', 'float32', (5, 1))]
    """
    joined = [tensor for tensor in op.tensors if 0 not in tensor.shape]
    dim = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
    dtypes = {tensor.dtype for tensor in joined}
    if len(dtypes) < 2 or not isinstance(dim, int) or not all(len(t.shape) == len(first.shape) > 0 for t in joined):
        return (op,)
    dim %= len(first.shape)
    shape = list(joined[0].shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in joined)
    dtype = "float32" if dtypes == HALVES else max(joined, key=lambda tensor: tensor.itemsize).dtype
    stride = tuple(dense(shape))
    places = [replace(tensor, dtype=dtype, stride=stride, storage=-1) for tensor in joined]
    return [Op("aten::copy_", both, overload="default") for both in zip(places, joined)]


_MADE_OF: dict[str, Callable[[Op, Tensor], Sequence[Op]]] = {"aten::_safe_softmax": _safe_softmax}
_MADE_ON_GPUS: dict[str, Callable[[Op, Tensor], Sequence[Op]]] = {BACKWARD: _gradients, "aten::cat": _copies}
"""What a CPU does in one go."""
