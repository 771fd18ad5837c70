"""Decompositions and solvers: QR, SVD, eigenvalues, Cholesky, LU, inverses, triangular systems."""

from __future__ import annotations

import math
from collections.abc import Callable

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import alignment, bool_argument, dtype_code, log, tensors_of
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Value
from foretrace.graph.op import is_contiguous
from foretrace.platform.measurements.cases import Case, Draw, strides

FLOPS = {
    "aten::linalg_qr": (4.0, 5.0),
    "aten::_linalg_svd": (20.0, 30.0),
    "aten::_linalg_eigh": (9.0, 12.0),
    "aten::linalg_cholesky_ex": (1 / 3, 0.5),
    "aten::linalg_inv_ex": (2.0, 3.0),
    "aten::_linalg_solve_ex": (1.0, 3.0),
    "aten::linalg_lu_factor_ex": (2 / 3, 3.0),
    "aten::linalg_solve_triangular": (1.0, 0.1),
    "aten::cholesky_inverse": (1.0, 0.5),
    "aten::cholesky_solve": (2.0, 0.5),
}
"""By op: arithmetic for a square matrix, in cubes of its side, and memory round trips for each of its columns, which
wait for the one before."""
ONE_BY_ONE = ("aten::linalg_qr",)
"""Ops that go through the matrices of a batch one after the other."""
PER_MATRIX = 16.0
"""Memory round trips of a matrix in such a loop, beside those of its columns."""


class LinearAlgebra(Family):
    """cuSOLVER's, MAGMA's and PyTorch's own decompositions: chains of small kernels, the host often between them."""

    name = "linear_algebra"
    share = 1
    ops = tuple(FLOPS)
    columns = ("op", "dtype", "batch", "rows", "columns", "right", "wants", "dense", "aligned", "flops", "bytes",
               "chain", "roof")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Calls whose matrix is known."""
        found = tensors_of(op)
        return bool(found) and len(found[0].shape) > 1

    def describe(self, op: Op, context: CallContext) -> Description:
        """The matrices' sizes, and the chain of columns that wait for each other."""
        tensors = tensors_of(op)
        a = tensors[0]
        rows, columns = a.shape[-2:]
        batch = max(1, math.prod(a.shape[:-2]))
        right = tensors[1].shape[-1] if len(tensors) > 1 and tensors[1].shape else 0
        short, long = sorted((max(1, rows), max(1, columns)))
        flops, trips = FLOPS[op.name]
        cube = flops * short * short * long + 2.0 * right * short * short
        chain = trips * short
        if op.name in ONE_BY_ONE and batch > 1:
            chain = batch * (PER_MATRIX + 0.1 * chain)
        work = Work(batch * cube, 4.0 * batch * a.itemsize * (rows * columns + rows * right), a.dtype, chain)
        features = [
            self.op_codes[op.name], dtype_code(a.dtype), log(batch), log(rows), log(columns), log(right),
            bool_argument(op, 2, "compute_uv"), is_contiguous(a), alignment(rows), log(work.flops), log(work.bytes),
            log(chain), log(64 * work.us(context.device)),
        ]  # fmt: skip
        return Description(features, work)

    def case(self, draw: Draw) -> Case:
        """One large matrix, or a batch of small ones."""
        many = draw.chance(0.35)
        side = draw.size(4, 128) if many else draw.size(32, max(32, min(2048, int(draw.most**0.5) // 2)))
        batch = draw.size(2, max(2, min(4096, draw.most // (4 * side * side)))) if many else 1
        name = draw.weighted(_KINDS)
        other = draw.size(max(4, side // 4), 4 * side) if name.endswith(("qr", "svd")) and draw.chance(0.5) else side
        if name.endswith(("svd", "eigh")):
            batch, side, other = min(batch, 64), min(side, 1024), min(other, 1024)
        shape = (batch, side, other) if many else (side, other)
        a = Tensor(shape, "float32", stride=strides(shape))
        named: dict[str, Value] = {"upper": False} if name.endswith("triangular") else {}
        return Case(Op(name, (a, *_KINDS_ARGS[name](draw, a)), named, overload="default"))


def _right(draw: Draw, a: Tensor) -> Tensor:
    shape = (*a.shape[:-1], draw.one((1, 16, a.shape[-1])))
    return Tensor(shape, a.dtype, stride=strides(shape))


_KINDS = {"aten::linalg_qr": 3, "aten::_linalg_svd": 2, "aten::_linalg_eigh": 4, "aten::linalg_cholesky_ex": 3,
          "aten::linalg_inv_ex": 2, "aten::_linalg_solve_ex": 2, "aten::linalg_lu_factor_ex": 1,
          "aten::linalg_solve_triangular": 2}  # fmt: skip
"""Those that are measured, and how often."""
_KINDS_ARGS: dict[str, Callable[[Draw, Tensor], tuple[Value, ...]]] = {
    "aten::linalg_qr": lambda draw, a: ("reduced",),
    "aten::_linalg_svd": lambda draw, a: (False, draw.chance(0.8)),
    "aten::_linalg_eigh": lambda draw, a: ("L", draw.chance(0.9)),
    "aten::linalg_cholesky_ex": lambda draw, a: (),
    "aten::linalg_inv_ex": lambda draw, a: (),
    "aten::_linalg_solve_ex": lambda draw, a: (_right(draw, a),),
    "aten::linalg_lu_factor_ex": lambda draw, a: (),
    "aten::linalg_solve_triangular": lambda draw, a: (_right(draw, a),),
}
