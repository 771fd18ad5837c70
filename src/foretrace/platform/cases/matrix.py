"""Matrix products: every layout, powers of two and odd sizes, skinny and batched."""

from __future__ import annotations

from foretrace.graph import Op, Tensor
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape, strides

OPS = {"mm": 9, "addmm": 5, "bmm": 5, "baddbmm": 1}


def draw(draw: Draw) -> Case:
    """A matrix product.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
    True
    """
    name, dtype = draw.weighted(OPS), draw.dtype()
    tf32 = dtype == "float32" and draw.chance(0.4)
    batched = name in ("bmm", "baddbmm")
    if batched and draw.chance(0.3):
        return Case(_interaction(draw, dtype), tf32=tf32)
    batch, m, n, k = _batched_sizes(draw) if batched else (0, *_sizes(draw))
    lead = (batch,) if batched else ()
    a, b = _matrix(draw, (*lead, m, k), dtype), _matrix(draw, (*lead, k, n), dtype)
    if name == "addmm":
        added = Tensor((n,), dtype) if draw.chance(0.85) else Tensor((m, n), dtype)
        return Case(Op("aten::addmm", (added, a, b), overload="default"), tf32=tf32)
    if name == "baddbmm":
        added = Tensor((*lead, m, n), dtype) if draw.chance(0.5) else Tensor((batch, 1, n), dtype)
        return Case(Op("aten::baddbmm", (added, a, b), overload="default"), tf32=tf32)
    return Case(Op(f"aten::{name}", (a, b), overload="default"), tf32=tf32)


def _sizes(draw: Draw) -> tuple[int, int, int]:
    side = min(16384, draw.most)
    style = draw.weighted({"any": 9, "layer": 6, "skinny": 3, "vocabulary": 2})
    if style == "any":
        sizes = [draw.size(16, side) for _ in range(3)]
    elif style == "layer":
        # A linear layer: rows of tokens or samples, two widths. Its backward has the rows on the inside.
        sizes = [draw.size(64, 4 * side), draw.size(16, side // 2), draw.size(16, side // 2)]
    elif style == "skinny":
        sizes = [draw.whole(1, 64), draw.size(16, side), draw.size(16, side)]
    else:
        sizes = [draw.size(64, side), draw.whole(1000, 160000), draw.size(64, side // 4)]
    draw.random.shuffle(sizes)
    return _within(sizes, draw.most)


def _within(sizes: list[int], most: int) -> tuple[int, int, int]:
    """The largest side is halved until each of the three matrices fits."""
    while True:
        _, middle, high = sorted(sizes)
        if middle * high <= most or high == 1:
            return sizes[0], sizes[1], sizes[2]
        sizes[sizes.index(high)] = high // 2


def _batched_sizes(draw: Draw) -> tuple[int, int, int, int]:
    m, n, k = _within([draw.size(4, 2048) for _ in range(3)], draw.most)
    largest = max(m * n, n * k, m * k)
    return draw.size(1, max(1, min(16384, draw.most // largest))), m, n, k


def _interaction(draw: Draw, dtype: str) -> Op:
    """All pairwise products of a sample's feature vectors: a batch of matrices with their own transposes."""
    features, width = draw.whole(4, 64), draw.size(8, 256)
    batch = draw.size(1, max(1, min(32768, draw.most // (features * width))))
    shape, turned = (batch, features, width), (batch, width, features)
    a = Tensor(shape, dtype, stride=strides(shape), storage=0)
    if draw.chance(0.5):
        return Op(
            "aten::bmm", (a, Tensor(turned, dtype, stride=strides(turned, (0, 2, 1)), storage=0)), overload="default"
        )
    square = (batch, features, features)
    pairs = Tensor(square, dtype, stride=strides(square, (0, 2, 1) if draw.chance(0.5) else None))
    return Op("aten::bmm", (pairs, a), overload="default")


def _matrix(draw: Draw, shape: Shape, dtype: str) -> Tensor:
    dims = list(range(len(shape)))
    style = draw.weighted({"dense": 10, "transposed": 9, "padded": 1})
    if style == "transposed":
        dims[-1], dims[-2] = dims[-2], dims[-1]
    stride = strides(shape, dims)
    if style == "padded" and 2 * shape[-1] * shape[-2] <= draw.most:
        # A slice of a wider matrix: rows lie further apart than they are long.
        wider = (*shape[:-1], shape[-1] + draw.size(1, shape[-1]))
        stride = strides(wider)
    return Tensor(shape, dtype, stride=stride)
