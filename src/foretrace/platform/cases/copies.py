"""Copies on one device: changes of dtype, of layout, padding, and gradients of views."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.graph import Constant, Op, Tensor, Value
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
    source = draw.activation(draw.weighted({**DTYPES, "int64": 1, "bool": 1}))
    target = draw.one([dtype for dtype in (*DTYPES, "int64") if dtype != source.dtype])
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
    layout = draw.layout(shape)
    target = Tensor(shape, dtype, stride=None if layout and 0 in layout else layout)
    source = Tensor(shape, dtype if draw.chance(0.7) else draw.dtype(), stride=draw.layout(shape))
    return Op("aten::copy_", (target, source), overload="default")


def _expanded(draw: Draw) -> Op:
    """A clone of a tensor that repeats itself: what an average's gradient is."""
    shape, dtype = draw.shape(draw.weighted({3: 1, 4: 3})), draw.dtype()
    stride = (*strides(shape[:2]), *(0,) * (len(shape) - 2))
    return Op("aten::clone", (Tensor(shape, dtype, stride=stride),), {"memory_format": CONTIGUOUS}, overload="default")


def _padded(draw: Draw) -> Op:
    shape = draw.shape(draw.weighted({2: 1, 3: 1, 4: 2}))
    pads: list[Value] = [draw.random.randint(0, 3), draw.random.randint(1, 3)] * (2 if len(shape) == 4 else 1)
    return Op("aten::constant_pad_nd", (Tensor(shape, draw.dtype()), pads, 0.0), overload="default")


def _for_each_query(draw: Draw) -> Op:
    """Keys of a few heads written out for all heads: dense from a tensor that repeats itself."""
    batch, heads, repeats, width = draw.whole(1, 32), draw.whole(1, 16), draw.one((2, 3, 4, 8)), draw.one((64, 128))
    length = draw.size(1, max(1, min(8192, draw.most // (batch * heads * repeats * width))))
    shape = (batch, heads, repeats, length, width)
    order = draw.one(((0, 1, 2, 3), (0, 2, 1, 3)))
    apart = strides((batch, heads, length, width), order)
    return Op(
        "aten::clone",
        (Tensor(shape, draw.dtype(), stride=(*apart[:2], 0, *apart[2:])),),
        {"memory_format": CONTIGUOUS},
        overload="default",
    )


def _windows(draw: Draw) -> Op:
    """An image cut into square windows, or put together again."""
    window, across = draw.one((7, 8, 12)), draw.whole(2, 16)
    width = draw.one((96, 128, 192, 256, 384))
    batch = draw.whole(1, max(1, min(128, draw.most // (width * (window * across) ** 2))))
    shape = (batch, across, across, window, window, width)
    tensor = Tensor(shape, draw.dtype(), stride=strides(shape, (0, 1, 3, 2, 4, 5)))
    return Op("aten::clone", (tensor,), {"memory_format": CONTIGUOUS}, overload="default")


def _again(draw: Draw) -> Op:
    """The same elements several times, or shifted around."""
    shape = draw.shape(draw.weighted({2: 2, 3: 2, 4: 1}), high=draw.most // 8)
    tensor = Tensor(shape, draw.dtype())
    if draw.chance(0.5):
        times: list[Value] = [1] * len(shape)
        times[draw.random.randrange(len(shape))] = draw.whole(2, 8)
        return Op("aten::repeat", (tensor, times), overload="default")
    first = draw.random.randrange(len(shape) - 1)
    return Op("aten::roll", (tensor, [-3, -3], [first, first + 1]), overload="default")


def _part_of(draw: Draw) -> Op:
    """The gradient of a slice or of one position: zeros with a part copied in."""
    shape, dtype = list(draw.shape(draw.weighted({2: 1, 3: 3, 4: 3}))), draw.dtype()
    dim = draw.random.randrange(len(shape))
    if draw.chance(0.4):
        grad = tuple(shape[:dim] + shape[dim + 1 :])
        args: tuple[Value, ...] = (Tensor(grad, dtype, stride=draw.layout(grad)), list(shape), dim, shape[dim] - 1)
        return Op("aten::select_backward", args, overload="default")
    start, end = 0, draw.random.randint(1, shape[dim])
    if draw.chance(0.4):
        dim = len(shape) - 1
        start, end = draw.one(((0, -(-shape[dim] // 2)), (shape[dim] // 2, shape[dim])))
    part = (*shape[:dim], end - start, *shape[dim + 1 :])
    args = (Tensor(part, dtype, stride=draw.layout(part)), list(shape), dim, start, end, 1)
    return Op("aten::slice_backward", args, overload="default")


_KINDS: dict[Callable[[Draw], Op], int] = {
    _convert: 10,
    _clone: 10,
    _into: 5,
    _expanded: 2,
    _padded: 1,
    _part_of: 5,
    _for_each_query: 2,
    _windows: 2,
    _again: 2,
}
