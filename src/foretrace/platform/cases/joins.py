"""Joining tensors: cat and stack."""

from __future__ import annotations

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw


def draw(draw: Draw) -> Case:
    """A cat or a stack of 2 to 64 tensors.

    >>> len(draw(Draw("0", most=4096, kind="cpu")).op.tensors) >= 2
    True
    """
    count, dtype = draw.whole(2, 64), draw.dtype()
    dims = draw.weighted({1: 1, 2: 5, 3: 3, 4: 1})
    shape = draw.shape(dims, low=1, high=max(1, draw.most // count))
    dim = draw.random.randrange(dims)
    if draw.chance(0.25):
        return Case(Op("aten::stack", ([Tensor(shape, dtype)] * count, dim), overload="default"))
    parts: list[Value] = []
    even = draw.chance(0.6)
    for _ in range(count):
        size = shape[dim] if even else draw.random.randint(1, shape[dim])
        parts.append(Tensor((*shape[:dim], size, *shape[dim + 1 :]), dtype))
    return Case(Op("aten::cat", (parts, dim), overload="default"))
