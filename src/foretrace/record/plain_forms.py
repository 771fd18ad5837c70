"""Calls that autograd makes differently while somebody watches, made as in a plain step.

Some derivatives scatter into fresh zeros in place. While a dispatch mode is on they do so out of place, with one copy
more, since PyTorch can't know that the mode would bear the other. Here the in-place form is called, and recorded.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

IN_PLACE: dict[Any, Any] = {
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.put.default: aten.put_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}


def plain_form(func: Any, args: Any, node: str, fresh: bool) -> tuple[Any, Any]:
    """What a plain step would call: the function and its arguments.

    Parameters
    ----------
    node
        The autograd node that calls; empty outside backward.
    fresh
        Whether the first argument was made by the call just before, so that nobody else can see it change.

    >>> func, args = plain_form(aten.scatter_add.default, (), "GatherBackward0", fresh=True)
    >>> func.name()
    'aten::scatter_add_'
    """
    if not (fresh and node):
        return func, args
    if func is aten.index_put.default and node.startswith("IndexBackward"):
        accumulate = bool(args[3]) if len(args) > 3 else False
        return aten._index_put_impl_.default, (*args[:3], accumulate, True)
    return IN_PLACE.get(func, func), args
