"""Optimizer updates over whole lists of parameters: foreach calls one by one, and the fused ones."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape

ADAM: dict[str, Value] = {
    "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False,
}  # fmt: skip
SGD: dict[str, Value] = {
    "weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False,
    "is_first_step": False,
}  # fmt: skip


def draw(draw: Draw) -> Case:
    """An update of all parameters of a random model.

    >>> len(draw(Draw("0", most=4096, kind="cpu")).op.tensors) > 0
    True
    """
    parameters = _within(draw.weighted(_MODELS)(draw), draw.most)
    dtype = draw.weighted({"float32": 8, "bfloat16": 1})
    tensors: list[Value] = [Tensor(shape, dtype) for shape in parameters]
    if draw.chance(0.3):
        return Case(_fused(draw, tensors))
    return Case(_foreach(draw, tensors))


def _within(shapes: list[Shape], most: int) -> list[Shape]:
    """As many of them as hold no more elements than allowed; at least a small one."""
    kept, left = [], most
    for shape in shapes:
        if prod(shape) <= left:
            kept.append(shape)
            left -= prod(shape)
    return kept or [(min(most, 64),)]


def _transformer(draw: Draw) -> list[Shape]:
    width = draw.size(32, 2048)
    block: list[Shape] = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(draw.whole(1000, 60000), width), *block * draw.whole(1, 32), (width,), (width,)]


def _perceptron(draw: Draw) -> list[Shape]:
    widths = [draw.size(8, 4096) for _ in range(draw.whole(2, 16))]
    return [shape for a, b in pairwise(widths) for shape in ((b, a), (b,))] or [(widths[0],)]


def _convolutional(draw: Draw) -> list[Shape]:
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    channels = 64
    for _ in range(draw.whole(2, 60)):
        wider = channels * 2 if channels < 1024 and draw.chance(0.1) else channels
        side = draw.one((1, 1, 3))
        shapes += [(wider, channels, side, side), (wider,), (wider,)]
        channels = wider
    return [*shapes, (draw.whole(10, 1000), channels)]


_MODELS: dict[Callable[[Draw], list[Shape]], int] = {_transformer: 5, _perceptron: 4, _convolutional: 4}


def _fused(draw: Draw, tensors: list[Value]) -> Op:
    steps: list[Value] = [Tensor((), "float32") for _ in tensors]
    if draw.chance(0.7):
        name = draw.one(("_fused_adamw_", "_fused_adam_"))
        return Op(f"aten::{name}", (tensors, tensors, tensors, tensors, [], steps), dict(ADAM), overload="default")
    return Op("aten::_fused_sgd_", (tensors, tensors, tensors), dict(SGD), overload="default")


def _foreach(draw: Draw, tensors: list[Value]) -> Op:
    numbers: list[Value] = [0.25] * len(tensors)
    calls: tuple[tuple[str, str, tuple[Value, ...]], ...] = (
        ("add_", "List", (tensors, tensors)),
        ("add_", "Scalar", (tensors, 1e-8)),
        ("mul_", "Scalar", (tensors, 0.999)),
        ("mul", "Scalar", (tensors, 0.999)),
        ("mul_", "Tensor", (tensors, Tensor((), "float32"))),
        ("lerp_", "Scalar", (tensors, tensors, 0.1)),
        ("addcmul_", "Scalar", (tensors, tensors, tensors, 0.001)),
        ("sqrt", "default", (tensors,)),
        ("div_", "ScalarList", (tensors, numbers)),
        ("addcdiv_", "ScalarList", (tensors, tensors, tensors, numbers)),
        ("norm", "Scalar", (tensors, 2)),
        ("copy_", "default", (tensors, tensors)),
        ("zero_", "default", (tensors,)),
    )
    name, overload, args = draw.one(calls)
    return Op(f"aten::_foreach_{name}", args, overload=overload)
