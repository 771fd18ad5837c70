"""Softmax and log-softmax, forward and backward."""

from __future__ import annotations

from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape


def draw(draw: Draw) -> Case:
    """A softmax over the last dimension, seldom over another.

    >>> "softmax" in draw(Draw("0", most=4096, kind="cpu")).op.name
    True
    """
    name, dtype = draw.one(("_softmax", "_log_softmax")), draw.dtype()
    style = draw.weighted({"any": 12, "vocabulary": 5, "image": 1})
    shape, dim = {"any": _any, "vocabulary": _vocabulary, "image": _image}[style](draw)
    tensor = Tensor(shape, dtype)
    if draw.chance(0.5):
        # Half precision in, float32 out, is a form of its own on a GPU.
        widened = draw.kind == "cuda" and dtype == "float16" and draw.chance(0.3)
        return Case(Op(f"aten::{name}", (tensor, dim, widened), overload="default"))
    args = (tensor, tensor, dim, Constant("dtype", dtype))
    return Case(Op(f"aten::{name}_backward_data", args, overload="default"))


def _any(draw: Draw) -> tuple[Shape, int]:
    classes = draw.whole(2, min(160_000, draw.most))
    rows = draw.size(1, max(1, min(65536, draw.most // classes)))
    if draw.chance(0.3):
        heads = draw.whole(1, 16)
        return (max(1, rows // heads), heads, classes), 2
    return (rows, classes), 1 if draw.chance(0.96) else 0


def _vocabulary(draw: Draw) -> tuple[Shape, int]:
    """The words a language model chooses from, for each place in a batch."""
    words = draw.whole(min(20_000, draw.most), min(160_000, draw.most))
    return (draw.size(1, max(1, min(32768, 2 * draw.most // words))), words), 1


def _image(draw: Draw) -> tuple[Shape, int]:
    """Classes of each pixel, which lie apart."""
    classes, side = draw.whole(2, 64), draw.whole(8, 512)
    side = min(side, max(1, int((draw.most // classes) ** 0.5)))
    return (draw.whole(1, max(1, min(64, draw.most // (classes * side * side)))), classes, side, side), 1
