"""Fast Fourier transforms, real and complex, of one to three dimensions."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    argument,
    dtype_code,
    int_argument,
    ints_in,
    log,
    strides_of,
    tensors_of,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.measurements.cases import Case, Draw, strides

REAL, BACK, COMPLEX = "aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"
SMOOTH = (2, 3, 5, 7)
"""Factors of the lengths that a library has kernels for; others take a detour by a longer transform."""


class Fourier(Family):
    """cuFFT's transforms: passes over the data, with a copy before and after where they are not in order."""

    name = "fourier"
    share = 1
    ops = (REAL, BACK, COMPLEX)
    columns = ("op", "dtype", "dims", "batch", "length", "last", "left", "twos", "inner", "turned", "elements", "flops",
               "bytes", "roof")  # fmt: skip

    def describe(self, op: Op, context: CallContext) -> Description:
        """The lengths that are transformed, their factors, and where the dimensions lie."""
        x = tensors_of(op)[0]
        rank = max(1, len(x.shape))
        dims = sorted({dim % rank for dim in ints_in(argument(op, 1, "dim"))}) or [rank - 1]
        sizes = [x.shape[dim] if dim < len(x.shape) else 1 for dim in dims]
        if op.name == BACK:
            sizes[-1] = int_argument(op, 3, "last_dim_size", sizes[-1])
        length = math.prod(sizes)
        elements = max(x.numel, length)
        batch = max(1, elements // max(1, length))
        passes = len(dims) * 2.0
        item = x.itemsize * (2 if op.name == REAL else 1)
        work = Work(5.0 * batch * length * log(length), passes * elements * item, "float32")
        stride = strides_of(x)
        features = [
            self.op_codes[op.name], dtype_code(x.dtype), len(dims), log(batch), log(length), log(sizes[-1]),
            log(math.prod(_unsmooth(size) for size in sizes)), sum(_twos(size) for size in sizes),
            dims[-1] == rank - 1, log(max((stride[dim] for dim in dims if dim < len(stride)), default=1)),
            log(elements), log(work.flops), log(work.bytes), log(64 * work.us(context.device)),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """A batch of signals or images, there or back."""
        dims = draw.weighted({1: 4, 2: 5, 3: 1})
        most = min(draw.most // 4, 2**26)
        side = max(4, int(most ** (1 / (dims + 1))))
        sizes = [draw.size(8, min(side, (65536, 1024, 128)[dims - 1])) for _ in range(dims)]
        lead = draw.size(1, max(1, most // math.prod(sizes)))
        channels = draw.one((1, 1, 16, 32, 64)) if lead > 64 else 1
        name = draw.weighted({REAL: 3, BACK: 3, COMPLEX: 2})
        half = [*sizes[:-1], sizes[-1] // 2 + 1] if name == BACK else sizes
        shape = (max(1, lead // channels), channels, *half)
        order = (0, *range(2, dims + 2), 1) if draw.chance(0.15) else None
        dtype = "float32" if name == REAL else "complex64"
        x = Tensor(shape, dtype, stride=strides(shape, order))
        over: list[Value] = [*range(2, dims + 2)]
        last: Value = sizes[-1] if name == BACK else name == REAL or draw.chance(0.5)
        return Case(Op(name, (x, over, draw.one((0, 0, 1, 2)), last), overload="default"))


def _unsmooth(size: int) -> int:
    """What is left of a size without its small factors.

    >>> _unsmooth(96), _unsmooth(2 * 13)
    (1, 13)
    """
    left = max(1, size)
    for factor in SMOOTH:
        while left % factor == 0:
            left //= factor
    return left


def _twos(size: int) -> int:
    return (size & -size).bit_length() - 1 if size > 0 else 0
