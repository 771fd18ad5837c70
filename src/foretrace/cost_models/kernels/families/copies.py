"""Copies inside a device: straight, converting, strided and transposing ones, and the padding of gradients."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.cost_models.kernels.family import Described, Facts, Family
from foretrace.cost_models.kernels.features import argument, dense, dtype_argument, integer, tensors_of, whole
from foretrace.cost_models.kernels.tensor_iterator import COLUMNS, output_of, pointwise
from foretrace.graph import Constant, Op, Tensor

PADDING = ("aten::slice_backward", "aten::select_backward", "aten::constant_pad_nd")


class Copies(Family):
    """What is read is written, as it is or converted."""

    name = "copies"
    ops = ("aten::clone", "aten::_to_copy", "aten::copy_", *PADDING, "aten::contiguous", "aten::repeat", "aten::flip",
           "aten::roll", "aten::_copy_from_and_resize", "aten::expand_copy", "aten::detach_copy",
           "aten::copy")  # fmt: skip
    columns = ("op", "filled", *COLUMNS)

    def takes(self, op: Op) -> bool:
        """Copies between devices are transfers."""
        tensors = tensors_of(op)
        return bool(tensors) and tensors[0].layout == "strided" and stays(op, tensors)

    def describe(self, op: Op, facts: Facts) -> Described:
        """The walk over both sides, and a background that is filled before."""
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
        columns, work = pointwise((PLACE[op.name], (filled + 1).bit_length() if filled else 0), reads, writes)
        return Described(columns, work._replace(flops=0.0, bytes=work.bytes + filled))


PLACE = {name: place for place, name in enumerate(Copies.ops)}


def kind_of(tensor: Tensor) -> str:
    """Whose memory a tensor lies in; an unnamed one is the device's.

    >>> kind_of(Tensor((1,), "int8", device="cpu")), kind_of(Tensor((1,), "int8"))
    ('host', 'device')
    """
    return "host" if tensor.device == "cpu" else "device"


def stays(op: Op, tensors: Sequence[Tensor]) -> bool:
    """Whether all that a call reads and writes lies on one side, host or device."""
    sides = {kind_of(t) for t in tensors}
    target = op.kwargs.get("device")
    if isinstance(target, Constant) and target.value:
        sides.add("host" if target.value == "cpu" else "device")
    return len(sides) == 1


def _made(op: Op, first: Tensor) -> Tensor:
    """What a copy makes: laid out as its operand, unless it is told otherwise."""
    made = output_of([first], dtype_argument(op, first.dtype))
    form = op.kwargs.get("memory_format")
    if op.name == "aten::contiguous" or (isinstance(form, Constant) and form.value == "contiguous_format"):
        return Tensor(made.shape, made.dtype)
    if op.name == "aten::repeat":
        times = whole(argument(op, 1, "repeats"))
        shape = (1,) * (len(times) - len(first.shape)) + first.shape
        if len(times) == len(shape):
            return Tensor(tuple(size * n for size, n in zip(shape, times)), made.dtype)
    return made


def _background(op: Op, source: Tensor) -> Tensor:
    """The whole that a gradient of a part is set into."""
    sizes = whole(argument(op, 1, "input_sizes", argument(op, 1, "pad")))
    if op.name == "aten::constant_pad_nd":
        padded = list(source.shape)
        for place, amount in enumerate(sizes[: 2 * len(padded)]):
            padded[-1 - place // 2] += amount
        sizes = padded
    return Tensor(tuple(max(0, size) for size in sizes) or source.shape, source.dtype)


def _inside(op: Op, source: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The part of the filled tensor that is copied to: its rows lie as far apart as those of the whole."""
    steps = dense(shape)
    if op.name == "aten::select_backward":
        dim = integer(op, 2, "dim", 0) % len(shape) if shape else 0
        steps = (*steps[:dim], *steps[dim + 1 :])
    return Tensor(source.shape, source.dtype, stride=steps if len(steps) == len(source.shape) else None)
