"""Calls that the dispatcher sees as one and that PyTorch makes of several others: each is priced as those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from foretrace.graph import Op, Tensor


def parts_of(op: Op) -> Sequence[Op]:
    """What a call is made of: itself where nothing else is known.

    >>> [part.name for part in parts_of(Op("aten::_safe_softmax", (Tensor((8, 8), "float32"), -1)))]
    ['aten::_softmax', 'aten::eq', 'aten::all', 'aten::fill_', 'aten::where']
    >>> [part.name for part in parts_of(Op("aten::relu"))]
    ['aten::relu']
    """
    made_of = _MADE_OF.get(op.name)
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


_MADE_OF: dict[str, Callable[[Op, Tensor], Sequence[Op]]] = {"aten::_safe_softmax": _safe_softmax}
