"""Joining tensors along a dimension: how many there are, how long their rows, how they are laid out."""

from __future__ import annotations

import math

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import (
    alignment,
    dtype_code,
    integer,
    is_dense,
    log,
    per,
    strides_of,
    tensors_of,
)  # fmt: skip
from foretrace.graph import Op, Tensor

TOGETHER = 128
"""Tensors that one launch joins."""


class Joins(Family):
    """cat and stack, of tensors of one dtype: others are copied one by one."""

    name = "joins"
    ops = ("aten::cat", "aten::stack", "aten::_cat")
    columns = ("op", "tensors", "bytes", "dtype", "rows", "row", "largest_row", "smallest_row",
               "row_aligned", "turned", "dims", "launches", "largest", "uneven", "joined_aligned", "step", "out_row",
               "alike")  # fmt: skip

    def describe(self, op: Op, facts: Facts) -> Described:
        """Rows: what of one tensor lies side by side in the result."""
        tensors = tensors_of(op)
        parts = [t for t in tensors if 0 not in t.shape] or tensors
        stacked = op.name == "aten::stack"
        dim = integer(op, 1, "dim", 0)
        first = parts[0]
        kinds = set(parts) if len(parts) > 1 else {first}
        rows = {t: _row(t, dim, stacked) for t in kinds}
        item = max(t.itemsize for t in kinds)
        turned = sum(not is_dense(t) for t in kinds)
        total = sum(t.numel for t in parts)
        largest = max(t.numel for t in kinds)
        launches = per(len(parts), TOGETHER)
        out_row = sum(rows[t] for t in parts)
        features = [
            self.ops.index(op.name), len(parts), log(total * item), dtype_code(first.dtype),
            log(first.numel / max(1, rows[first])), log(rows[first]), log(max(rows.values())),
            log(min(rows.values())), min(alignment(row * item) for row in rows.values()), turned / len(kinds),
            len(first.shape), launches, log(largest * item), largest * len(parts) / max(1, total),
            alignment(out_row * item),
            log(min(strides_of(first), default=1) + (strides_of(first)[-1] if first.shape else 0)), log(out_row),
            len(kinds) == 1,
        ]  # fmt: skip
        return Described(features, Work(bytes=sum(t.nbytes for t in parts) + total * item, trips=2 * (launches - 1)))


def _row(tensor: Tensor, dim: int, stacked: bool) -> int:
    """Elements of a tensor that lie side by side once it is joined."""
    dims = len(tensor.shape) + stacked
    return math.prod(tensor.shape[dim % dims if dims else 0 :])
