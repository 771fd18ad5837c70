"""Copies on one device: changes of dtype, of layout, padding, and gradients of views."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import DTYPES, Draw, strides

CONTIGUOUS = Constant("memory_format", "contiguous_format")


def draw(draw: Draw) -> Case:
    """A copy.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.overload
    'default'
    """
    return Case(draw.weighted(_KINDS)(draw))


def _convert(draw: Draw) -> Op:
    source = draw.activation()
    target = draw.one([dtype for dtype in DTYPES if dtype != source.dtype])
    tensor = Tensor(source.shape, source.dtype, stride=draw.layout(source.shape))
    return Op("aten::_to_copy", (tensor,), {"dtype": Constant("dtype", target)}, overload="default")


def _clone(draw: Draw) -> Op:
    shape, dtype = draw.shape(draw.weighted({2: 2, 3: 3, 4: 5})), draw.weighted({**DTYPES, "int64": 1})
    order = list(range(len(shape)))
    style = draw.weighted({"shuffled": 5, "ends": 3, "sliced": 3, "dense": 2})
    if style == "shuffled":
        draw.random.shuffle(order)
    elif style == "ends":
        order[-1], order[-2] = order[-2], order[-1]
    stride = strides(shape, order)
    if style == "sliced":
        wider = (*shape[:-1], shape[-1] * draw.whole(2, 8))
        stride = strides(wider)
    return Op("aten::clone", (Tensor(shape, dtype, stride=stride),), {"memory_format": CONTIGUOUS}, overload="default")


def _into(draw: Draw) -> Op:
    shape, dtype = draw.shape(draw.weighted({1: 1, 2: 3, 3: 3, 4: 3})), draw.dtype()
    target = Tensor(shape, dtype, stride=draw.layout(shape))
    source = Tensor(shape, dtype if draw.chance(0.7) else draw.dtype(), stride=draw.layout(shape))
    return Op("aten::copy_", (target, source), overload="default")


def _expanded(draw: Draw) -> Op:
    """A clone of a tensor that repeats itself: what an average's gradient is."""
    shape, dtype = draw.shape(draw.weighted({3: 1, 4: 3})), draw.dtype()
    stride = (*strides(shape[:2]), *(0,) * (len(shape) - 2))
    return Op("aten::clone", (Tensor(shape, dtype, stride=stride),), {"memory_format": CONTIGUOUS}, overload="default")


def _padded(draw: Draw) -> Op:
    tensor = draw.activation()
    before, after = draw.random.randint(0, 3), draw.random.randint(1, 3)
    return Op("aten::constant_pad_nd", (tensor, [before, after], 0.0), overload="default")


def _part_of(draw: Draw) -> Op:
    """The gradient of a slice or of one position: zeros with a part copied in."""
    shape, dtype = list(draw.shape(draw.weighted({2: 1, 3: 3}))), draw.dtype()
    dim = draw.random.randrange(len(shape))
    if draw.chance(0.5):
        grad = Tensor(tuple(shape[:dim] + shape[dim + 1 :]), dtype)
        return Op("aten::select_backward", (grad, list(shape), dim, shape[dim] - 1), overload="default")
    end = draw.random.randint(1, shape[dim])
    grad = Tensor((*shape[:dim], end, *shape[dim + 1 :]), dtype)
    return Op("aten::slice_backward", (grad, list(shape), dim, 0, end, 1), overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {_convert: 10, _clone: 10, _into: 5, _expanded: 2, _padded: 1, _part_of: 4}
