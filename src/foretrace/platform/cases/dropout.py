"""Dropout and random numbers."""

from __future__ import annotations

from foretrace.graph import Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw

KINDS = {"native_dropout": 6, "native_dropout_backward": 6, "bernoulli_": 1, "uniform_": 1, "normal_": 1}


def draw(draw: Draw) -> Case:
    """A dropout, its gradient, or a fill with random numbers.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.tensors[0].numel <= 4096
    True
    """
    name, x = draw.weighted(KINDS), draw.activation()
    if name == "native_dropout":
        op = Op("aten::native_dropout", (x, 0.1, True), overload="default")
    elif name == "native_dropout_backward":
        op = Op("aten::native_dropout_backward", (x, Tensor(x.shape, "bool"), 1 / 0.9), overload="default")
    elif name == "bernoulli_":
        op = Op("aten::bernoulli_", (x, 0.9), overload="float")
    else:
        op = Op(f"aten::{name}", (x, 0.0, 1.0), overload="default")
    return Case(op)
