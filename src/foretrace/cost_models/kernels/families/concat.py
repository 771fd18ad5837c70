"""Concatenation and stacking: number of tensors, length of their rows, layouts."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    alignment,
    ceil_div,
    dtype_code,
    int_argument,
    log,
    strides_of,
    tensors_of,
)  # fmt: skip
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.graph.op import is_contiguous
from foretrace.platform.measurements.cases import Case, Draw, Shape

TENSORS_PER_LAUNCH = 128


class Concat(Family):
    """cat and stack of tensors of one dtype; those of several are copied one by one."""

    name = "joins"  # in files, and for users
    share = 1.5
    ops = ("aten::cat", "aten::stack", "aten::_cat")
    columns = ("op", "tensors", "bytes", "dtype", "rows", "row", "largest_row", "smallest_row",
               "row_aligned", "turned", "dims", "launches", "largest", "uneven", "joined_aligned", "step", "out_row",
               "alike")  # fmt: skip

    def describe(self, op: Op, context: CallContext) -> Description:
        """Rows: the contiguous runs of each tensor in the output."""
        tensors = tensors_of(op)
        parts = [t for t in tensors if 0 not in t.shape] or tensors
        stacked = op.name == "aten::stack"
        dim = int_argument(op, 1, "dim", 0)
        first = parts[0]
        kinds = set(parts) if len(parts) > 1 else {first}
        rows = {t: _row(t, dim, stacked) for t in kinds}
        item = max(t.itemsize for t in kinds)
        strided = sum(not is_contiguous(t) for t in kinds)
        total = sum(t.numel for t in parts)
        largest = max(t.numel for t in kinds)
        launches = ceil_div(len(parts), TENSORS_PER_LAUNCH)
        out_row = sum(rows[t] for t in parts)
        features = [
            self.op_codes[op.name], len(parts), log(total * item), dtype_code(first.dtype),
            log(first.numel / max(1, rows[first])), log(rows[first]), log(max(rows.values())),
            log(min(rows.values())), min(alignment(row * item) for row in rows.values()), strided / len(kinds),
            len(first.shape), launches, log(largest * item), largest * len(parts) / max(1, total),
            alignment(out_row * item),
            log(min(strides_of(first), default=1) + (strides_of(first)[-1] if first.shape else 0)), log(out_row),
            len(kinds) == 1,
        ]  # fmt: skip
        return Description(
            features, Work(bytes=sum(t.nbytes for t in parts) + total * item, round_trips=2 * (launches - 1))
        )

    def case(self, draw: Draw) -> Case:
        """A cat or a stack of 2 to 512 tensors."""
        count, dtype = draw.weighted({2: 3, draw.whole(2, 64): 8, draw.whole(64, 512): 1}), draw.dtype()
        if draw.chance(0.08):
            # The norms of all gradients, stacked by gradient clipping.
            return Case(Op("aten::stack", ([Tensor((), dtype)] * count,), overload="default"))
        dims = draw.weighted({1: 1, 2: 5, 3: 3, 4: 3})
        shape = draw.shape(dims, low=1, high=max(1, draw.most // count))
        dim = draw.random.randrange(dims)
        if draw.chance(0.2):
            return Case(Op("aten::stack", ([Tensor(shape, dtype)] * count, dim), overload="default"))
        return Case(Op("aten::cat", (_parts(draw, shape, dim, count, dtype), dim), overload="default"))


def _row(tensor: Tensor, dim: int, stacked: bool) -> int:
    """Elements of a tensor that are contiguous in the output."""
    dims = len(tensor.shape) + stacked
    return math.prod(tensor.shape[dim % dims if dims else 0 :])


# Cases to measure


def _parts(draw: Draw, shape: Shape, dim: int, count: int, dtype: str) -> list[Value]:
    """Tensors that differ in one dimension at most; some are views, one may have another dtype or be empty."""
    even, viewed = draw.chance(0.6), draw.chance(0.4)
    parts: list[Tensor] = []
    for _ in range(count):
        size = shape[dim] if even else draw.random.randint(1, shape[dim])
        part = (*shape[:dim], size, *shape[dim + 1 :])
        parts.append(Tensor(part, dtype, stride=draw.layout(part) if viewed else None))
    style = draw.weighted({"all alike": 16, "cache": 2, "mixed": 2})
    if style == "cache":
        # Keys are concatenated to a cache, which is empty in training.
        return [Tensor((0,), dtype), parts[0]]
    if style == "mixed":
        parts[0] = Tensor(parts[0].shape, "bfloat16" if dtype == "float32" else "float32")
    return list(parts)
