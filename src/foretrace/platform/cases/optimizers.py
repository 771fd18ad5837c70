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


def _encoder(draw: Draw) -> list[Shape]:
    """Query, key and value apart, each with a bias."""
    width, wider = 64 * draw.whole(2, 24), draw.one((2, 4, 4))
    square: list[Shape] = [(width, width), (width,)]
    block = [*square * 4, (wider * width, width), (wider * width,), (width, wider * width), (width,), *[(width,)] * 4]
    words: list[Shape] = [(draw.whole(8000, 60000), width), (draw.size(128, 1024), width), (2, width)]
    return [*words, *block * draw.whole(2, 24), *square, (width,), (width,)]


def _gated(draw: Draw) -> list[Shape]:
    """No biases, fewer heads for keys than for queries, three matrices in each perceptron."""
    width = 64 * draw.whole(4, 64)
    keys, wider = max(64, width // draw.one((1, 2, 4, 8))), 64 * max(1, round(width * 8 / 3 / 64))
    block: list[Shape] = [(width, width), (keys, width), (keys, width), (width, width)]
    block += [(wider, width), (wider, width), (width, wider), (width,), (width,)]
    return [(draw.whole(16000, 130000), width), *block * draw.whole(1, 32), (width,)]


def _bottlenecks(draw: Draw) -> list[Shape]:
    """Residual stages: convolutions of 1, 3 and 1, a scale and a shift after each."""
    base = draw.one((32, 48, 64, 64, 96, 128))
    shapes: list[Shape] = [(base, 3, 7, 7), (base,), (base,)]
    inner = base
    for stage, blocks in enumerate((draw.whole(1, 4), draw.whole(1, 8), draw.whole(1, 36), draw.whole(1, 4))):
        width = base << stage
        for block in range(blocks):
            shapes += [(width, inner, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, inner, 1, 1), (4 * width,), (4 * width,)]
            inner = 4 * width
    return [*shapes, (1000, inner), (1000,)]


_MODELS: dict[Callable[[Draw], list[Shape]], int] = {
    _transformer: 4,
    _perceptron: 4,
    _convolutional: 2,
    _encoder: 4,
    _gated: 4,
    _bottlenecks: 4,
}


def _fused(draw: Draw, tensors: list[Value]) -> Op:
    steps: list[Value] = [Tensor((), "float32") for _ in tensors]
    if draw.chance(0.7):
        name = draw.one(("_fused_adamw_", "_fused_adam_"))
        return Op(f"aten::{name}", (tensors, tensors, tensors, tensors, [], steps), dict(ADAM), overload="default")
    return Op("aten::_fused_sgd_", (tensors, tensors, tensors), dict(SGD), overload="default")


def _foreach(draw: Draw, tensors: list[Value]) -> Op:
    numbers: list[Value] = [0.25] * len(tensors)
    if draw.chance(0.06):
        # The step counts, which live on the device where the update is fused.
        return Op("aten::_foreach_add_", ([Tensor((), "float32") for _ in tensors], 1), overload="Scalar")
    calls: tuple[tuple[str, str, tuple[Value, ...]], ...] = (
        ("add_", "List", (tensors, tensors)),
        ("add", "List", (tensors, tensors)),
        ("add_", "Scalar", (tensors, 1e-8)),
        ("mul_", "Scalar", (tensors, 0.999)),
        ("mul", "Scalar", (tensors, 0.999)),
        ("mul_", "Tensor", (tensors, Tensor((), "float32"))),
        ("lerp_", "Scalar", (tensors, tensors, 0.1)),
        ("addcmul_", "Scalar", (tensors, tensors, tensors, 0.001)),
        ("sqrt", "default", (tensors,)),
        ("div_", "ScalarList", (tensors, numbers)),
        ("addcdiv_", "ScalarList", (tensors, tensors, tensors, numbers)),
        ("addcdiv_", "Scalar", (tensors, tensors, tensors, -0.01)),
        ("maximum_", "List", (tensors, tensors)),
        ("mul_", "ScalarList", (tensors, numbers)),
        ("norm", "Scalar", (tensors, 2)),
        ("copy_", "default", (tensors, tensors)),
        ("zero_", "default", (tensors,)),
    )
    name, overload, args = draw.one(calls)
    return Op(f"aten::_foreach_{name}", args, overload=overload)
