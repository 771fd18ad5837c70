"""Reductions over some dimensions or all of them."""

from __future__ import annotations

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, strides

OPS = {
    ("sum", "dim_IntList"): 12, ("mean", "dim"): 5, ("amax", "default"): 2, ("var", "correction"): 2,
    ("linalg_vector_norm", "default"): 2, ("sum", "default"): 2, ("mean", "default"): 2, ("argmax", "default"): 1,
    ("max", "dim"): 1, ("any", "default"): 1, ("logsumexp", "default"): 1, ("var_mean", "correction"): 1,
}  # fmt: skip


def draw(draw: Draw) -> Case:
    """A reduction.

    >>> len(draw(Draw("0", most=4096, kind="cpu")).op.tensors)
    1
    """
    if draw.chance(0.06):
        return Case(_over_repeats(draw))
    dims = draw.weighted({1: 1, 2: 8, 3: 4, 4: 5})
    shape, dtype = draw.shape(dims, low=draw.one((16, 1024, 1024))), draw.dtype()
    tensor = Tensor(shape, dtype, stride=draw.layout(shape))
    name, overload = draw.weighted(OPS)
    keep = draw.chance(0.5)
    if overload == "default" and name in ("sum", "mean", "any"):
        args: tuple[Value, ...] = (tensor,)
    elif name in ("argmax", "max"):
        args = (tensor, draw.random.randrange(dims), keep)
    elif name == "linalg_vector_norm":
        args = (tensor, 2) if draw.chance(0.6) else (tensor, 2, list(_some(draw, dims)), keep)
    elif name in ("var", "var_mean"):
        reduced = _some(draw, dims)
        options: dict[str, Value] = {"correction": int(all(shape[dim] > 1 for dim in reduced)), "keepdim": keep}
        return Case(Op(f"aten::{name}", (tensor, list(reduced)), options, overload=overload))
    else:
        args = (tensor, list(_some(draw, dims)), keep)
    return Case(Op(f"aten::{name}", args, overload=overload))


def _over_repeats(draw: Draw) -> Op:
    """The gradient of keys that several queries' heads share."""
    batch, heads, repeats, width = draw.whole(1, 32), draw.whole(1, 16), draw.one((2, 3, 4, 8)), draw.one((64, 128))
    length = draw.size(1, max(1, min(8192, draw.most // (batch * heads * repeats * width))))
    shape = (batch, heads, repeats, length, width)
    tensor = Tensor(shape, draw.dtype(), stride=strides(shape, (0, 3, 1, 2, 4) if draw.chance(0.6) else None))
    return Op("aten::sum", (tensor, [2], True), overload="dim_IntList")


def _some(draw: Draw, dims: int) -> list[int]:
    """The dimensions to reduce: the first (a bias's gradient), the last, all pixels of an image, or any."""
    if dims == 4 and draw.chance(0.4):
        return [-1, -2]
    style = draw.weighted({"first": 5, "last": 3, "all but one": 2, "any": 2})
    if style == "first":
        return [0]
    if style == "last":
        return [dims - 1]
    kept = draw.random.randrange(dims)
    if style == "all but one" and dims > 1:
        return [dim for dim in range(dims) if dim != kept]
    return [kept]
