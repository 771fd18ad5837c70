"""Dropout and random numbers."""

from __future__ import annotations

from foretrace.graph import Constant, Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, strides

KINDS = {"native_dropout": 6, "native_dropout_backward": 6, "bernoulli_": 1, "uniform_": 1, "normal_": 1, "rand": 1}


def draw(draw: Draw) -> Case:
    """A dropout, its gradient, or a fill with random numbers.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name.startswith("aten::")
    True
    """
    name, x = draw.weighted(KINDS), draw.activation()
    order = strides(x.shape, (1, 0, 2)) if len(x.shape) == 3 and draw.chance(0.2) else None
    if name == "native_dropout":
        op = Op("aten::native_dropout", (Tensor(x.shape, x.dtype, stride=order), 0.1, True), overload="default")
    elif name == "native_dropout_backward":
        mask = Tensor(x.shape, "bool", stride=order)
        op = Op("aten::native_dropout_backward", (x, mask, 1 / 0.9), overload="default")
    elif name == "rand":
        options: dict[str, Value] = {"dtype": Constant("dtype", x.dtype), "device": Constant("device", "")}
        op = Op("aten::rand", (list(x.shape),), options, overload="default")
    elif name == "bernoulli_":
        op = Op("aten::bernoulli_", (x, 0.9), overload="float")
    else:
        op = Op(f"aten::{name}", (x, 0.0, 1.0), overload="default")
    return Case(op)
