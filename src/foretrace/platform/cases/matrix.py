"""Matrix products: every layout, powers of two and odd sizes, skinny, batched, grouped, and of 8-bit floats."""

from __future__ import annotations

from foretrace.graph import Constant, Op, Tensor, Value
from foretrace.platform.cases.case import Case
from foretrace.platform.cases.draw import Draw, Shape, strides

OPS = {"mm": 9, "addmm": 5, "bmm": 5, "baddbmm": 1}


def draw(draw: Draw) -> Case:
    """A matrix product.

    >>> draw(Draw("0", most=4096, kind="cpu")).op.name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
    True
    """
    if draw.kind == "cuda" and draw.chance(0.1):
        return Case(_eight_bits(draw) if draw.chance(0.6) else _grouped(draw))
    name, dtype = draw.weighted(OPS), draw.dtype()
    tf32 = dtype == "float32" and draw.chance(0.4)
    if name in ("mm", "addmm") and draw.chance(0.45):
        return Case(_layer(draw, dtype), tf32=tf32)
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
    if draw.chance(0.04):
        # Compiled code gives the place for the result.
        return Case(Op(f"aten::{name}", (a, b), {"out": _dense((*lead, m, n), dtype)}, overload="out"), tf32=tf32)
    return Case(Op(f"aten::{name}", (a, b), overload="default"), tf32=tf32)


def _layer(draw: Draw, dtype: str) -> Op:
    """A linear layer as transformers and recommenders have them: its forward, or one of its two gradients."""
    style = draw.weighted({"transformer": 6, "perceptron": 4, "vocabulary": 2})
    if style == "perceptron":
        rows = draw.size(32, 65536)
        given, made = (draw.one((draw.whole(1, 32), draw.size(16, 2048), draw.size(16, 2048))) for _ in range(2))
    else:
        width = 64 * draw.whole(4, 96)
        rows = draw.whole(1, 64) * draw.size(16, 4096) if draw.chance(0.8) else draw.whole(64, 65536)
        given, made = width, draw.one((width, width, 3 * width, 4 * width, 64 * draw.whole(2, 256)))
        if style == "vocabulary":
            made, rows = draw.whole(20_000, 160_000), min(rows, 32768)
        if draw.chance(0.35):
            given, made = made, given
    rows, given, made = _within([rows, given, made], 2 * draw.most)
    x, grad = _dense((rows, given), dtype), _dense((rows, made), dtype)
    step = draw.weighted({"forward": 5, "input": 3, "weight": 3})
    if step == "input":
        return Op("aten::mm", (grad, _dense((made, given), dtype)), overload="default")
    if step == "weight":
        turned = Tensor((made, rows), dtype, stride=(1, made))
        return Op("aten::mm", (turned, x), overload="default")
    transposed = Tensor((given, made), dtype, stride=(1, given))
    if draw.chance(0.3):
        return Op("aten::mm", (x, transposed), overload="default")
    return Op("aten::addmm", (Tensor((made,), dtype), x, transposed), overload="default")


def _eight_bits(draw: Draw) -> Op:
    """A product of 8-bit floats with a scale for each tensor or each row."""
    m, n, k = _within([16 * draw.whole(1, 4096), 16 * draw.whole(2, 1024), 16 * draw.whole(2, 1024)], draw.most)
    n, k = max(16, n // 16 * 16), max(16, k // 16 * 16)
    a = _dense((m, k), "float8_e4m3fn")
    b = Tensor((k, n), draw.weighted({"float8_e4m3fn": 4, "float8_e5m2": 1}), stride=(1, k))
    by_row = b.dtype == a.dtype and draw.chance(0.3)
    scales = (Tensor((m, 1), "float32"), Tensor((1, n), "float32")) if by_row else (Tensor((), "float32"),) * 2
    options: dict[str, Value] = {"out_dtype": Constant("dtype", "bfloat16"), "use_fast_accum": draw.chance(0.6)}
    return Op("aten::_scaled_mm", (a, b, *scales), options, overload="default")


def _grouped(draw: Draw) -> Op:
    """One product for each expert, over the rows that fell to it; or the gradients of the experts' weights."""
    inner = 64 * draw.whole(2, max(2, min(96, draw.most // 2**15)))
    width = 64 * draw.whole(2, max(2, min(64, draw.most // (2**8 * inner))))
    groups = draw.whole(2, max(2, min(128, draw.most // (width * inner))))
    rows = 8 * draw.whole(8, max(8, min(8192, draw.most // (8 * max(width, inner)))))
    ends = Tensor((groups,), "int32")
    if draw.chance(0.35):
        shape, x = (inner, rows), _dense((rows, width), "bfloat16")
        return Op("aten::_grouped_mm", (Tensor(shape, "bfloat16", stride=(1, inner)), x, ends), overload="default")
    shapes = (groups, inner, width)
    experts = Tensor(shapes, "bfloat16", stride=strides(shapes, (0, 2, 1) if draw.chance(0.6) else None))
    return Op("aten::_grouped_mm", (_dense((rows, inner), "bfloat16"), experts, ends), overload="default")


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


def _dense(shape: Shape, dtype: str) -> Tensor:
    return Tensor(shape, dtype, stride=strides(shape))


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
