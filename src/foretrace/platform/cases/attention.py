"""Scaled-dot-product attention: every implementation, forward and backward."""

from __future__ import annotations

from math import isqrt

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape, strides

ON_CUDA = {"cudnn": 5, "flash": 5, "efficient": 4}


def draw(draw: Draw) -> Case:
    """An attention, or the gradient of one.

    >>> "attention" in draw(Draw("0", most=4096, kind="cpu")).op.name
    True
    """
    kind = draw.weighted(ON_CUDA) if draw.kind == "cuda" else "cpu"
    dtype = draw.weighted({"bfloat16": 5, "float16": 2})
    if kind == "cpu" or (kind == "efficient" and draw.chance(0.75)):
        dtype = "float32"
    width = draw.one((32, 64, 64, 64, 80, 96, 128, 128))
    # Where no matrix units help, a large attention takes a good part of a second.
    work = 2**24 if kind == "cpu" else 2**31 if dtype == "float32" else 2**33
    length = draw.size(64, max(64, min(8192, draw.most // width, isqrt(work))))
    pairs = max(1, min(2048, draw.most // (length * width), work // length**2))
    heads = draw.whole(1, min(32, pairs))
    shape = (draw.whole(1, max(1, pairs // heads)), heads, length, width)
    q, k, v = _inputs(draw, shape, dtype)
    causal = draw.chance(0.5)
    dropout = 0.1 if kind != "cpu" and draw.chance(0.4) else 0.0
    make = _forward if draw.chance(0.45) else _backward
    return Case(make(kind, (q, k, v), dropout, causal))


def _inputs(draw: Draw, shape: Shape, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value: heads apart, or still in the rows of the projections, apart or in one."""
    _, heads, length, width = shape
    style = draw.weighted({"rows": 5, "packed": 3, "dense": 2})
    if style == "dense":
        stride = strides(shape)
    else:
        row = heads * width * (3 if style == "packed" else 1)
        stride = (length * row, width, row, 1)
    offsets = (0, heads * width, 2 * heads * width) if style == "packed" else (0, 0, 0)
    storages = (0, 0, 0) if style == "packed" else (0, 1, 2)
    q, k, v = (Tensor(shape, dtype, stride=stride, offset=o, storage=s) for o, s in zip(offsets, storages))
    return q, k, v


def _forward(kind: str, qkv: tuple[Tensor, Tensor, Tensor], dropout: float, causal: bool) -> Op:
    scale: dict[str, Value] = {"scale": qkv[0].shape[-1] ** -0.5}
    rest: dict[str, tuple[Value, ...]] = {
        "cudnn": (None, True, dropout, causal),
        "flash": (dropout, causal),
        "efficient": (None, True, dropout, causal),
        "cpu": (0.0, causal),
    }
    return Op(_name(kind), (*qkv, *rest[kind]), scale, overload="default")


def _backward(kind: str, qkv: tuple[Tensor, Tensor, Tensor], dropout: float, causal: bool) -> Op:
    scale: dict[str, Value] = {"scale": qkv[0].shape[-1] ** -0.5}
    batch, heads, length, width = qkv[0].shape
    row = heads * width
    out = Tensor(qkv[0].shape, qkv[0].dtype, stride=(length * row, width, row, 1))
    if kind in ("cudnn", "efficient"):
        # The efficient kernel pads its rows of logarithms to whole blocks of 32.
        sums = (batch, heads, length, 1) if kind == "cudnn" else (batch, heads, -(-length // 32) * 32)
    else:
        sums = (batch, heads, length)
    logsumexp = Tensor(sums, "float32")
    seed = Tensor((2,), "uint64") if kind == "flash" else Tensor((), "int64")
    offset = Tensor((), "int64")
    wanted: list[Value] = [True, True, True, False]
    args: dict[str, tuple[Value, ...]] = {
        "cudnn": (out, *qkv, out, logsumexp, seed, offset, None, None, None, length, length, dropout, causal),
        "flash": (out, *qkv, out, logsumexp, None, None, length, length, dropout, causal, seed, offset),
        "efficient": (out, *qkv, None, out, logsumexp, seed, offset, dropout, wanted, causal),
        "cpu": (out, *qkv, out, logsumexp, 0.0, causal),
    }
    return Op(_name(kind) + "_backward", args[kind], scale, overload="default")


def _name(kind: str) -> str:
    if kind == "cpu":
        return "aten::_scaled_dot_product_flash_attention_for_cpu"
    return f"aten::_scaled_dot_product_{kind}_attention"
