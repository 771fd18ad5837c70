"""Lookups of rows by id, their gradients, and the sparse update after them, over many spreads of the ids."""

from __future__ import annotations

from dataclasses import replace

from foretrace.graph import Op, Tensor, Value
from foretrace.platform.cases.case import Case, Ids
from foretrace.platform.cases.draw import Draw

KINDS = {
    "bag": 8,
    "bag_backward": 8,
    "embedding": 3,
    "embedding_backward": 4,
    "select": 1,
    "sparse_update": 4,
    "coalesce": 2,
}
POOLED = ("bag", "bag_backward", "sparse_update", "coalesce")


def draw(draw: Draw) -> Case:
    """A lookup, a gradient of one or a sparse update.

    >>> draw(Draw("0", most=4096, kind="cpu")).ids.count > 0
    True
    """
    dtype = draw.weighted({"float32": 8, "bfloat16": 1, "float16": 1})
    dim = draw.size(16, 256) if draw.chance(0.9) else draw.size(256, 1024)
    rows = draw.whole(min(1000, draw.most // dim), max(1, min(10_000_000, 4 * draw.most // dim)))
    if draw.chance(0.2):
        rows = draw.whole(2, max(2, min(1000, 4 * draw.most // dim)))  # a country, a weekday: all bags hit the same few
    kind = draw.weighted(KINDS)
    pooling = draw.whole(1, 100) if kind in POOLED and draw.chance(0.75) else 1
    # Often all tables of a model are looked up at once: they lie in one, and each has its bags.
    tables = draw.whole(2, 64) if kind in POOLED and draw.chance(0.35) else 1
    bags = draw.size(2, max(2, min(16384 if pooling > 1 else 65536, draw.most // (dim * pooling * tables)))) * tables
    rows = max(tables, rows // tables * tables)
    ids = replace(spread(draw, bags * pooling), tables=tables)
    op = _OPS[kind](draw, dtype, rows, dim, bags, pooling)
    return Case(op, ids=ids)


def spread(draw: Draw, count: int) -> Ids:
    """Uniform, a power law, or a histogram that falls about as those of production tables do."""
    style = draw.weighted({"uniform": 3, "power": 5, "histogram": 3})
    if style == "uniform":
        return Ids(count)
    if style == "power":
        return Ids(count, skew=round(draw.random.uniform(0.4, 1.4), 3))
    # Production tables: a third to a half of the rows is hit once, some doublings are about as frequent as each other,
    # and from there on each is rarer by a steady factor.
    once, flat, fall = draw.random.uniform(0.2, 0.7), draw.random.uniform(0.7, 1.0), draw.random.uniform(0.3, 0.65)
    knee, last = draw.random.randint(1, 5), draw.random.randint(6, 15)
    tail = [flat ** min(k, knee) * fall ** max(0, k - knee) for k in range(last)]
    shares = [once] + [(1 - once) * share / sum(tail) for share in tail]
    return Ids(count, reuse=tuple(round(share, 5) for share in shares))


def _bag(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    kind = draw.weighted({"int64": 12, "int32": 1})
    last = draw.chance(0.1)
    weight, ids, offsets = Tensor((rows, dim), dtype), Tensor((bags * pooling,), kind), Tensor((bags + last,), kind)
    mode = draw.weighted({0: 8, 1: 2})
    weights = Tensor((bags * pooling,), dtype) if mode == 0 and draw.chance(0.08) else None
    args: tuple[Value, ...] = (weight, ids, offsets, False, mode, draw.chance(0.7), weights, last)
    return Op("aten::_embedding_bag", args, overload="default")


def _bag_backward(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    # The gradient is often one table's columns of a wider tensor of all tables.
    tables = draw.whole(1, 32) if draw.chance(0.6) else 1
    if bags * dim * tables > draw.most:
        tables = 1
    grad = Tensor((bags, dim), dtype, stride=(dim * tables, 1))
    count = bags * pooling
    sparse = draw.chance(0.6) or rows * dim > draw.most
    ids, offsets = Tensor((count,), "int64"), Tensor((bags,), "int64")
    bag_of_id, bag_size, no_maxima = Tensor((count,), "int64"), Tensor((bags,), "int64"), Tensor((0,), "int64")
    mode = draw.weighted({0: 8, 1: 2})
    args = (grad, ids, offsets, bag_of_id, bag_size, no_maxima, rows, False, mode, sparse, None)
    return Op("aten::_embedding_bag_backward", args, overload="default")


def _words(draw: Draw, count: int) -> Tensor:
    """Ids in a row, or in one for each sample; sometimes the same positions for all samples."""
    if count < 4 or draw.chance(0.3):
        return Tensor((count,), "int64")
    batch = draw.whole(2, min(256, count // 2))
    return Tensor((batch, count // batch), "int64", stride=(0, 1) if draw.chance(0.15) else None)


def _embedding(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    return Op("aten::embedding", (Tensor((rows, dim), dtype), _words(draw, bags * pooling)), overload="default")


def _embedding_backward(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    rows = min(rows, max(1, draw.most // dim))
    ids = _words(draw, bags * pooling)
    grad = Tensor((*ids.shape, dim), dtype)
    padding = 0 if draw.chance(0.3) else -1
    return Op("aten::embedding_dense_backward", (grad, ids, rows, padding, False), overload="default")


def _select(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    table, ids = Tensor((rows, dim), dtype), Tensor((bags * pooling,), "int64")
    return Op("aten::index_select", (table, 0, ids), overload="default")


def _sparse_update(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    table, grad = Tensor((rows, dim), dtype), Tensor((rows, dim), dtype, layout="sparse_coo")
    return Op("aten::add_", (table, grad), {"alpha": -0.01}, overload="Tensor")


def _coalesce(draw: Draw, dtype: str, rows: int, dim: int, bags: int, pooling: int) -> Op:
    return Op("aten::_coalesce", (Tensor((rows, dim), dtype, layout="sparse_coo"),), overload="default")


_OPS = {
    "bag": _bag,
    "bag_backward": _bag_backward,
    "embedding": _embedding,
    "embedding_backward": _embedding_backward,
    "select": _select,
    "sparse_update": _sparse_update,
    "coalesce": _coalesce,
}
