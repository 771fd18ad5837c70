"""Joining tensors: cat and stack."""

from __future__ import annotations

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape


def draw(draw: Draw) -> Case:
    """A cat or a stack of 2 to 512 tensors.

    >>> len(draw(Draw("0", most=4096, kind="cpu")).op.tensors) >= 2
    True
    """
    count, dtype = draw.weighted({2: 3, draw.whole(2, 64): 8, draw.whole(64, 512): 1}), draw.dtype()
    if draw.chance(0.08):
        # The norms of all gradients, on the way to clipping them.
        return Case(Op("aten::stack", ([Tensor((), dtype)] * count,), overload="default"))
    dims = draw.weighted({1: 1, 2: 5, 3: 3, 4: 3})
    shape = draw.shape(dims, low=1, high=max(1, draw.most // count))
    dim = draw.random.randrange(dims)
    if draw.chance(0.2):
        return Case(Op("aten::stack", ([Tensor(shape, dtype)] * count, dim), overload="default"))
    return Case(Op("aten::cat", (_parts(draw, shape, dim, count, dtype), dim), overload="default"))


def _parts(draw: Draw, shape: Shape, dim: int, count: int, dtype: str) -> list[Value]:
    """Tensors that differ in one dimension at most; some are views, one may be of another dtype or empty."""
    even, viewed = draw.chance(0.6), draw.chance(0.4)
    parts: list[Tensor] = []
    for _ in range(count):
        size = shape[dim] if even else draw.random.randint(1, shape[dim])
        part = (*shape[:dim], size, *shape[dim + 1 :])
        parts.append(Tensor(part, dtype, stride=draw.layout(part) if viewed else None))
    style = draw.weighted({"all alike": 16, "cache": 2, "mixed": 2})
    if style == "cache":
        # Keys are joined to those of earlier words, of which there are none in training.
        return [Tensor((0,), dtype), parts[0]]
    if style == "mixed":
        parts[0] = Tensor(parts[0].shape, "bfloat16" if dtype == "float32" else "float32")
    return list(parts)
