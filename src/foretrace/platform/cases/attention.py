"""Scaled-dot-product attention: every implementation, forward and backward."""

from __future__ import annotations

from math import isqrt, prod
from typing import NamedTuple

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape, strides

KINDS = {"cuda": {"cudnn": 4, "flash": 5, "efficient": 6}, "cpu": {"cpu": 1}}
WIDTHS = {32: 3, 48: 1, 64: 9, 72: 1, 80: 2, 96: 2, 128: 8, 160: 1, 192: 1, 256: 2}
"""Elements of a head."""
WORK = {"cpu": 2**20, "float32": 2**28, "float16": 2**31, "bfloat16": 2**31}
"""Products of a query with a key, at most: a larger attention takes a good part of a second."""


class Attention(NamedTuple):
    """What an attention and its gradient share."""

    kind: str
    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    dropout: float
    causal: bool

    @property
    def scale(self) -> dict[str, Value]:
        """The factor of the products."""
        return {"scale": self.query.shape[-1] ** -0.5}

    @property
    def name(self) -> str:
        """The forward call's name."""
        style = "flash_attention_for_cpu" if self.kind == "cpu" else f"{self.kind}_attention"
        return f"aten::_scaled_dot_product_{style}"


def draw(draw: Draw) -> Case:
    """An attention at the first turn, its gradient at the second.

    >>> [draw(Draw("0", most=4096, kind="cpu", turn=turn)).op.name.endswith("backward") for turn in (0, 1)]
    [False, True]
    """
    kind = draw.weighted(KINDS[draw.kind])
    dtype = draw.weighted({"bfloat16": 5, "float16": 2})
    if kind == "cpu" or (kind == "efficient" and draw.chance(0.5)):
        dtype = "float32"
    query, key = _shapes(draw, kind, dtype)
    inputs = _inputs(draw, query, key, dtype)
    causal = query[2] == key[2] and draw.chance(0.5)
    dropout = 0.1 if kind != "cpu" and draw.chance(0.3) else 0.0
    bias = None
    products = (*query[:3], key[2])
    if not causal and prod(products) <= 2 * draw.most and draw.chance({"efficient": 0.5, "cudnn": 0.15}.get(kind, 0.0)):
        bias = _bias(draw, products, dtype)
    attention = Attention(kind, *inputs, bias, dropout, causal)
    return Case(_backward(attention) if draw.turn else _forward(attention))


def _shapes(draw: Draw, kind: str, dtype: str) -> tuple[Shape, Shape]:
    """Batch, heads, length and width of the queries; and of the keys, which may be of other heads and length."""
    width = draw.weighted({w: often for w, often in WIDTHS.items() if w <= 128 or kind != "cudnn"})
    work = WORK["cpu" if kind == "cpu" else dtype]
    length = draw.size(16, max(16, min(8192, draw.most // width, isqrt(work))))
    others = draw.size(16, length) if draw.chance(0.12) else length
    pairs = max(1, min(65536, draw.most // (length * width), work // (length * others)))
    heads = min(draw.whole(1, 64) if draw.chance(0.3) else draw.one((4, 6, 8, 12, 16, 20, 24, 32, 40, 64)), pairs)
    batch = draw.whole(1, max(1, min(4096, pairs // heads)))
    grouped = kind in ("cudnn", "flash") and draw.chance(0.2)
    shared = draw.one([n for n in (1, 2, 4, 8) if heads % n == 0]) if grouped else 1
    return (batch, heads, length, width), (batch, heads // shared, others, width)


def _inputs(draw: Draw, query: Shape, key: Shape, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value: heads apart, or still in the rows of the projections, apart or in one."""
    style = draw.weighted({"rows": 5, "packed": 4, "length first": 2, "dense": 2, "kept": 2})
    if style == "packed" and query == key:
        _, heads, length, width = query
        row = heads * width
        stride = (3 * length * row, width, 3 * row, 1)
        q, k, v = (Tensor(query, dtype, stride=stride, offset=part * row, storage=0) for part in range(3))
        return q, k, v
    orders = {"length first": (2, 0, 1, 3), "dense": (0, 1, 2, 3)}
    order = orders.get(style, (0, 2, 1, 3))
    # Keys and values that were joined to earlier ones lie apart, while the query is still in its row.
    other = (0, 1, 2, 3) if style == "kept" else order
    q = Tensor(query, dtype, stride=strides(query, order), storage=0)
    k, v = (Tensor(key, dtype, stride=strides(key, other), storage=number) for number in (1, 2))
    return q, k, v


def _bias(draw: Draw, shape: Shape, dtype: str) -> Tensor:
    """What is added to the products: one for all heads (a mask), one for all samples (of positions), or of each."""
    padded = (*shape[:3], -(-shape[3] // 16) * 16)
    style = draw.weighted({"heads": 5, "samples": 2, "own": 1})
    held = {"heads": (1,), "samples": (0,), "own": ()}[style]
    apart = strides(tuple(1 if dim in held else size for dim, size in enumerate(padded)))
    return Tensor(shape, dtype, stride=tuple(0 if dim in held else step for dim, step in enumerate(apart)), storage=3)


def _forward(a: Attention) -> Op:
    qkv = (a.query, a.key, a.value)
    rest: dict[str, tuple[Value, ...]] = {
        "cudnn": (a.bias, True, a.dropout, a.causal),
        "flash": (a.dropout, a.causal),
        "efficient": (a.bias, True, a.dropout, a.causal),
        "cpu": (0.0, a.causal),
    }
    return Op(a.name, (*qkv, *rest[a.kind]), a.scale, overload="default")


def _backward(a: Attention) -> Op:
    qkv = (a.query, a.key, a.value)
    batch, heads, length, _ = a.query.shape
    others = a.key.shape[2]
    out = Tensor(a.query.shape, a.query.dtype, stride=strides(a.query.shape, (0, 2, 1, 3)))
    # The efficient kernel pads its rows of logarithms to whole blocks of 32.
    sums = {"cudnn": (batch, heads, length, 1), "efficient": (batch, heads, -(-length // 32) * 32)}
    logsumexp = Tensor(sums.get(a.kind, (batch, heads, length)), "float32")
    seed = Tensor((2,), "uint64") if a.kind == "flash" else Tensor((), "int64")
    offset = Tensor((), "int64")
    lengths = (length, others)
    wanted: list[Value] = [True, True, True, False]
    args: dict[str, tuple[Value, ...]] = {
        "cudnn": (out, *qkv, out, logsumexp, seed, offset, a.bias, None, None, *lengths, a.dropout, a.causal),
        "flash": (out, *qkv, out, logsumexp, None, None, *lengths, a.dropout, a.causal, seed, offset),
        "efficient": (out, *qkv, a.bias, out, logsumexp, seed, offset, a.dropout, wanted, a.causal),
        "cpu": (out, *qkv, out, logsumexp, 0.0, a.causal),
    }
    return Op(f"{a.name}_backward", args[a.kind], a.scale, overload="default")
