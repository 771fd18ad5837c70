"""Fresh or existing memory set to one value, and ranges."""

from __future__ import annotations

from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw

DEVICE = Constant("device", "")
"""The device that is measured."""


def draw(draw: Draw) -> Case:
    """A fill.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name.startswith("aten::")
    True
    """
    dtype = draw.weighted({"float32": 5, "bfloat16": 3, "int64": 1})
    shape = draw.shape(draw.weighted({1: 2, 2: 3, 3: 2}), low=1)
    layout = draw.layout(shape)
    tensor = Tensor(shape, dtype, stride=None if layout and 0 in layout else layout)
    kind = Constant("dtype", dtype)
    ops = {
        "zero_": Op("aten::zero_", (tensor,), overload="default"),
        "fill_": Op("aten::fill_", (tensor, 0.5 if dtype != "int64" else 1), overload="Scalar"),
        "zeros": Op("aten::zeros", (list(shape),), {"dtype": kind, "device": DEVICE}, overload="default"),
        "full": Op("aten::full", (list(shape), 1), {"dtype": kind, "device": DEVICE}, overload="default"),
        "ones_like": Op("aten::ones_like", (tensor,), overload="default"),
        "zeros_like": Op("aten::zeros_like", (tensor,), overload="default"),
        "new_zeros": Op("aten::new_zeros", (tensor, list(shape)), overload="default"),
        "ones": Op("aten::ones", (list(shape),), {"dtype": kind, "device": DEVICE}, overload="default"),
        "set": Op("aten::fill_", (tensor, Tensor((), dtype)), overload="Tensor"),
        "arange": Op("aten::arange", (tensor.numel,), {"device": DEVICE}, overload="default"),
    }
    return Case(ops[draw.weighted(dict.fromkeys(ops, 1) | {"zero_": 3, "fill_": 2, "zeros": 3})])
