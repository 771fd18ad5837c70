"""Softmax and log-softmax, forward and backward."""

from __future__ import annotations

from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw


def draw(draw: Draw) -> Case:
    """A softmax over the last dimension, seldom over another.

    >>> "softmax" in draw(Draw("0", most=4096, kind="cpu")).op.name
    True
    """
    classes = draw.whole(2, min(160_000, draw.most))
    rows = draw.size(1, max(1, min(65536, draw.most // classes)))
    shape: tuple[int, ...] = (rows, classes)
    if draw.chance(0.3):
        heads = draw.whole(1, 16)
        shape = (max(1, rows // heads), heads, classes)
    dim = len(shape) - 1 if draw.chance(0.96) else 0
    name, dtype = draw.one(("_softmax", "_log_softmax")), draw.dtype()
    tensor = Tensor(shape, dtype)
    if draw.chance(0.5):
        # Half precision in, float32 out, is a form of its own on a GPU.
        widened = draw.kind == "cuda" and dtype == "float16" and draw.chance(0.3)
        return Case(Op(f"aten::{name}", (tensor, dim, widened), overload="default"))
    args = (tensor, tensor, dim, Constant("dtype", dtype))
    return Case(Op(f"aten::{name}_backward_data", args, overload="default"))
