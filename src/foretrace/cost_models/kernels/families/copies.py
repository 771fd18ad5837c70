"""Copies within a device: contiguous, converting, strided and transposing ones, and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import argument, dtype_argument, int_argument, ints_in, tensors_of
from foretrace.cost_models.kernels.tensor_iterator import POINTWISE_COLUMNS, output_of, pointwise
from foretrace.graph import Constant, Op, Tensor, Value
from foretrace.graph.op import CONTIGUOUS, contiguous_strides
from foretrace.platform.measurements.cases import DTYPES, Case, Draw, strides

PADDING = ("aten::slice_backward", "aten::select_backward", "aten::constant_pad_nd")


class Copies(Family):
    """clone, copy_, to, contiguous, pad, and the gradients of views."""

    name = "copies"
    share = 3
    ops = ("aten::clone", "aten::_to_copy", "aten::copy_", *PADDING, "aten::contiguous", "aten::repeat", "aten::flip",
           "aten::roll", "aten::_copy_from_and_resize", "aten::expand_copy", "aten::detach_copy",
           "aten::copy")  # fmt: skip
    columns = ("op", "filled", *POINTWISE_COLUMNS)

    def accepts(self, op: Op) -> bool:
        """Copies within one memory; those between host and device are transfers."""
        tensors = tensors_of(op)
        return bool(tensors) and tensors[0].layout == "strided" and within_one_memory(op, tensors)

    def describe(self, op: Op, context: CallContext) -> Description:
        """The traversal of source and target, and a background that is filled first."""
        tensors = tensors_of(op)
        first = tensors[0]
        filled, reads, writes = 0, [first], [first]
        if op.name in ("aten::copy_", "aten::copy"):
            reads = tensors[1:2] or [first]
        elif op.name in PADDING:
            background = _background(op, first)
            filled = background.nbytes
            writes = [_inside(op, first, background.shape)]
        else:
            writes = [_made(op, first)]
        columns, work = pointwise((self.op_codes[op.name], (filled + 1).bit_length() if filled else 0), reads, writes)
        return Description(columns, work._replace(flops=0.0, bytes=work.bytes + filled))

    def case(self, draw: Draw) -> Case:
        """A copy of a random kind."""
        return Case(draw.weighted(_KINDS)(draw))


def memory_of(tensor: Tensor) -> str:
    """The memory a tensor lies in; one without a device is on the device.

    >>> memory_of(Tensor((1,), "int8", device="cpu")), memory_of(Tensor((1,), "int8"))
    ('host', 'device')
    """
    return "host" if tensor.device == "cpu" else "device"


def within_one_memory(op: Op, tensors: Sequence[Tensor]) -> bool:
    """Whether all that a call reads and writes lies in one memory, host or device."""
    sides = {memory_of(t) for t in tensors}
    target = op.kwargs.get("device")
    if isinstance(target, Constant) and target.value:
        sides.add("host" if target.value == "cpu" else "device")
    return len(sides) == 1


def _made(op: Op, first: Tensor) -> Tensor:
    """The output of a copy: laid out like its input, unless a memory format is given."""
    made = output_of([first], dtype_argument(op, first.dtype))
    form = op.kwargs.get("memory_format")
    if op.name == "aten::contiguous" or (isinstance(form, Constant) and form.value == "contiguous_format"):
        return Tensor(made.shape, made.dtype)
    if op.name == "aten::repeat":
        times = ints_in(argument(op, 1, "repeats"))
        shape = (1,) * (len(times) - len(first.shape)) + first.shape
        if len(times) == len(shape):
            return Tensor(tuple(size * n for size, n in zip(shape, times)), made.dtype)
    return made


def _background(op: Op, source: Tensor) -> Tensor:
    """The tensor that is filled before a part of it is copied to."""
    sizes = ints_in(argument(op, 1, "input_sizes", argument(op, 1, "pad")))
    if op.name == "aten::constant_pad_nd":
        padded = list(source.shape)
        for place, amount in enumerate(sizes[: 2 * len(padded)]):
            padded[-1 - place // 2] += amount
        sizes = padded
    return Tensor(tuple(max(0, size) for size in sizes) or source.shape, source.dtype)


def _inside(op: Op, source: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The part of the filled tensor that is copied to, as a view."""
    steps = contiguous_strides(shape)
    if op.name == "aten::select_backward":
        dim = int_argument(op, 2, "dim", 0) % len(shape) if shape else 0
        steps = (*steps[:dim], *steps[dim + 1 :])
    return Tensor(source.shape, source.dtype, stride=steps if len(steps) == len(source.shape) else None)


# Cases to measure


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
    """A clone of an expanded tensor: the gradient of a mean."""
    shape, dtype = draw.shape(draw.weighted({3: 1, 4: 3})), draw.dtype()
    stride = (*strides(shape[:2]), *(0,) * (len(shape) - 2))
    return Op("aten::clone", (Tensor(shape, dtype, stride=stride),), {"memory_format": CONTIGUOUS}, overload="default")


def _padded(draw: Draw) -> Op:
    shape = draw.shape(draw.weighted({2: 1, 3: 1, 4: 2}))
    pads: list[Value] = [draw.random.randint(0, 3), draw.random.randint(1, 3)] * (2 if len(shape) == 4 else 1)
    return Op("aten::constant_pad_nd", (Tensor(shape, draw.dtype()), pads, 0.0), overload="default")


def _for_each_query(draw: Draw) -> Op:
    """Keys of grouped heads expanded to all query heads, and made contiguous."""
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
    """An image partitioned into square windows, or merged again."""
    window, across = draw.one((7, 8, 12)), draw.whole(2, 16)
    width = draw.one((96, 128, 192, 256, 384))
    batch = draw.whole(1, max(1, min(128, draw.most // (width * (window * across) ** 2))))
    shape = (batch, across, across, window, window, width)
    tensor = Tensor(shape, draw.dtype(), stride=strides(shape, (0, 1, 3, 2, 4, 5)))
    return Op("aten::clone", (tensor,), {"memory_format": CONTIGUOUS}, overload="default")


def _again(draw: Draw) -> Op:
    """A repeat or a roll."""
    shape = draw.shape(draw.weighted({2: 2, 3: 2, 4: 1}), high=draw.most // 8)
    tensor = Tensor(shape, draw.dtype())
    if draw.chance(0.5):
        times: list[Value] = [1] * len(shape)
        times[draw.random.randrange(len(shape))] = draw.whole(2, 8)
        return Op("aten::repeat", (tensor, times), overload="default")
    first = draw.random.randrange(len(shape) - 1)
    return Op("aten::roll", (tensor, [-3, -3], [first, first + 1]), overload="default")


def _part_of(draw: Draw) -> Op:
    """The gradient of a slice or a select: zeros with a part copied in."""
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
