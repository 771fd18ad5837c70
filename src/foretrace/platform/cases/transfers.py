"""Copies between host and device, from pinned and from pageable memory."""

from __future__ import annotations

from foretrace.graph import Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw


def draw(draw: Draw) -> Case:
    """A copy to or from the device.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name in ("aten::copy_", "aten::_local_scalar_dense")
    True
    """
    dtype = draw.weighted({"float32": 4, "int64": 3, "bfloat16": 2})
    if draw.chance(0.1):
        return Case(Op("aten::_local_scalar_dense", (Tensor((), dtype),), overload="default"))
    shape = (draw.whole(1, min(draw.most, 2**24)),)
    here, there = Tensor(shape, dtype), Tensor(shape, dtype, device="cpu")
    pinned = draw.kind == "cuda" and draw.chance(0.5)
    args = (here, there, pinned) if draw.chance(0.6) else (there, here, pinned)
    return Case(Op("aten::copy_", args, overload="default"), pinned=pinned)
