"""Matrix products (GEMM): tiles, waves, alignment and transposition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from foretrace.cost_models.kernels.family import GEMM_SIZES, CallContext, Description, Family
from foretrace.cost_models.kernels.features import alignment, log
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Constant, Op, Tensor, Tf32, Value
from foretrace.platform.measurements.cases import Case, Draw, Shape, strides

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.kernel_names import TiledKernel

GROUPED = "aten::_grouped_mm"
PLAIN = ("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_int_mm", GROUPED, "aten::mv")
ADDING = ("aten::addmm", "aten::baddbmm", "aten::addmv", "aten::_addmm_activation", "aten::addbmm")
RATES = ("bfloat16", "float16", "float32", "tf32", "float64", "float8_e4m3fn", "int8")
PACKED = "float4_e2m1fn_x2"
EQUAL_RATE = {"float8_e5m2": "float8_e4m3fn", PACKED: "float8_e4m3fn"}
"""Gradients in 8 bits, taken as the other 8-bit float: 549 such GEMMs on the H200 were predicted within 3.5 %. And
pairs of 4-bit floats, taken as 8-bit ones: Tensor Cores that know them multiply twice as many in a clock."""
TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256), (32, 32), (192, 128))
MAKERS = ("nvjet", "xmma", "cutlass_75")
"""Kinds of kernels, by a part of their names."""


class Gemm(Family):
    """mm, addmm, bmm, baddbmm, of 8-bit floats and grouped."""

    name = "matrix"  # in files, and for users
    share = 20
    ops = (*PLAIN, *ADDING)
    columns = (
        "op", "groups", "rate", "turned_a", "turned_b", "added", "batched", "batch", "m", "n", "k", "flops", "bytes",
        "roof", "intensity",
        "m_aligned", "n_aligned", "k_aligned", "row_a_aligned", "row_b_aligned", "least_aligned", "rows", "results",
        "m_exact", "n_exact", "k_exact", "m_left", "n_left", "k_left", "same", "repeated",
        *(f"{what}_{a}x{b}" for a, b in TILES for what in ("tiles", "ragged", "filled")), "processors",
    )  # fmt: skip

    gemm_sizes = GEMM_SIZES

    def accepts(self, op: Op) -> bool:
        """Calls whose two operands are known."""
        return len(op.tensors) > 1 + (op.name in ADDING)

    def describe(self, op: Op, context: CallContext) -> Description:
        """Sizes, layouts, and the tiles of the result."""
        tensors = op.tensors
        first = 1 if op.name in ADDING else 0
        a, b = tensors[first], tensors[first + 1]
        batch, m, n, k = product_sizes(a, b)
        groups = tensors[2].numel if op.name == GROUPED and len(tensors) > 2 else 0
        rate = "tf32" if a.dtype == "float32" and context.tf32 else a.dtype
        rate = EQUAL_RATE.get(rate, rate)
        layout_a, row_a = _layout(a)
        layout_b, row_b = _layout(b)
        work = Work(2 * batch * m * n * k, a.itemsize * batch * (m * k + k * n + m * n), rate)
        added = 1 + len(tensors[0].shape) if first else 0
        repeated = log(batch * m * n / max(1, tensors[0].numel)) if first else 0.0
        features: list[float] = [
            self.op_codes[op.name], log(groups), RATES.index(rate) if rate in RATES else -1, layout_a, layout_b, added,
            len(a.shape) == 3, log(batch), log(m), log(n), log(k), log(work.flops), log(work.bytes),
            log(work.us(context.device)), log(work.flops / max(1.0, work.bytes)),
            alignment(m), alignment(n), alignment(k), alignment(row_a), alignment(row_b),
            min(alignment(row_a), alignment(row_b), alignment(n)), log(batch * m), log(batch * m * n), m, n, k, m % 128,
            n % 128, k % 64, a.storage >= 0 and a.storage == b.storage, repeated,
        ]  # fmt: skip
        for tile_m, tile_n in TILES:
            tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch
            waves = tiles / context.device.sms
            features += (log(tiles), math.ceil(waves) / waves, batch * m * n / (tiles * tile_m * tile_n))
        features.append(context.device.sms)
        return Description(features, work)

    def least_work(self, op: Op) -> Work | None:
        """Of a grouped GEMM: the weights of all experts that have rows are read, or all of their gradients written.

        The roofline that models were fitted with counts those of one expert. Rows fall to experts at random.
        """
        if op.name != GROUPED or len(op.tensors) < 3 or len(op.tensors[0].shape) + len(op.tensors[1].shape) == 6:
            return None
        a, b, ends = op.tensors[:3]
        _, m, n, k = product_sizes(a, b)
        rows, groups = (m if len(b.shape) == 3 else k), max(1, ends.numel)
        used = groups * -math.expm1(-rows / groups) if len(b.shape) == 3 else groups
        elements = m * k + used * k * n + m * n if len(b.shape) == 3 else m * k + k * n + used * m * n
        return Work(2 * m * n * k, a.itemsize * elements, EQUAL_RATE.get(a.dtype, a.dtype))

    def is_guess(self, op: Op) -> bool:
        """GEMMs of 4-bit floats were never measured."""
        return any(tensor.dtype == PACKED for tensor in op.tensors[:2])

    def kernel_traits(self, kernels: Sequence[str]) -> tuple[float, ...]:
        """Tile, split-K, number of kernels, and maker.

        >>> Gemm().kernel_traits(["Memset (Device)", "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"])[:4]
        (7.0, 8.0, 6.0, False)
        """
        kernel = self.main_kernel(kernels)
        tile = (log(side) for side in (kernel.first, kernel.second, kernel.depth))
        return (*tile, kernel.split, len(kernels), *(maker in kernel.maker for maker in MAKERS))

    def main_kernel(self, kernels: Sequence[str]) -> TiledKernel:
        """The kernel that multiplied, without split-K reductions and other helpers."""
        from foretrace.cost_models.kernels.kernel_names import gemm_kernel  # fitting alone reads names

        return gemm_kernel(kernels)

    def may_use_tf32(self, settings: Tf32) -> bool:
        """GEMMs have a setting of their own."""
        return settings.gemms

    def case(self, draw: Draw) -> Case:
        """A GEMM of random sizes, layouts and dtype."""
        if draw.kind == "cuda" and draw.chance(0.1):
            return Case(_eight_bits(draw) if draw.chance(0.6) else _grouped(draw))
        name, dtype = draw.weighted(OPS), draw.dtype()
        tf32 = dtype == "float32" and draw.chance(0.4)
        if name in ("mm", "addmm") and draw.chance(0.45):
            return Case(_layer(draw, dtype), tf32=tf32)
        batched = name in ("bmm", "baddbmm")
        if batched and draw.chance(0.3):
            return Case(_interaction(draw, dtype), tf32=tf32)
        batch, m, n, k = _batched_sizes(draw) if batched else (0, *_draw_sizes(draw))
        lead = (batch,) if batched else ()
        a, b = _matrix(draw, (*lead, m, k), dtype), _matrix(draw, (*lead, k, n), dtype)
        if name == "addmm":
            added = Tensor((n,), dtype) if draw.chance(0.85) else Tensor((m, n), dtype)
            return Case(Op("aten::addmm", (added, a, b), overload="default"), tf32=tf32)
        if name == "baddbmm":
            added = Tensor((*lead, m, n), dtype) if draw.chance(0.5) else Tensor((batch, 1, n), dtype)
            return Case(Op("aten::baddbmm", (added, a, b), overload="default"), tf32=tf32)
        if draw.chance(0.04):
            # Compiled code passes the output tensor.
            return Case(Op(f"aten::{name}", (a, b), {"out": _dense((*lead, m, n), dtype)}, overload="out"), tf32=tf32)
        return Case(Op(f"aten::{name}", (a, b), overload="default"), tf32=tf32)


def product_sizes(a: Tensor, b: Tensor) -> tuple[int, int, int, int]:
    """Batch, m, n and k; an empty dimension counts as one."""
    batch = a.shape[0] if len(a.shape) == 3 and len(b.shape) == 3 else 1
    m, k = a.shape[-2:] if len(a.shape) > 1 else (1, a.numel)
    n = b.shape[-1] if len(b.shape) > 1 else 1
    return max(1, batch), max(1, m), max(1, n), max(1, k)


def _layout(matrix: Tensor) -> tuple[int, int]:
    """Row-major (0), column-major (1) or neither (2), and the leading dimension."""
    stride = matrix.stride
    if stride is None or len(matrix.shape) < 2 or len(stride) < 2:
        return 0, matrix.shape[-1] if matrix.shape else 1
    if stride[-1] == 1 and (stride[-2] >= matrix.shape[-1] or stride[-2] != 1):
        return 0, stride[-2]
    return (1, stride[-1]) if stride[-2] == 1 else (2, stride[-2])


# Cases to measure

OPS = {"mm": 9, "addmm": 5, "bmm": 5, "baddbmm": 1}


def _layer(draw: Draw, dtype: str) -> Op:
    """A linear layer of a transformer or a recommender: its forward, or one of its two gradients."""
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
        transposed = Tensor((made, rows), dtype, stride=(1, made))
        return Op("aten::mm", (transposed, x), overload="default")
    transposed = Tensor((given, made), dtype, stride=(1, given))
    if draw.chance(0.3):
        return Op("aten::mm", (x, transposed), overload="default")
    return Op("aten::addmm", (Tensor((made,), dtype), x, transposed), overload="default")


def _eight_bits(draw: Draw) -> Op:
    """A GEMM of 8-bit floats, scaled per tensor or per row."""
    m, n, k = _within([16 * draw.whole(1, 4096), 16 * draw.whole(2, 1024), 16 * draw.whole(2, 1024)], draw.most)
    n, k = max(16, n // 16 * 16), max(16, k // 16 * 16)
    # Gradients have the wider range, activations and weights the finer steps; two of the wider kind are refused.
    first, second = draw.weighted({("e4m3fn", "e4m3fn"): 4, ("e5m2", "e4m3fn"): 2, ("e4m3fn", "e5m2"): 1})
    a = _dense((m, k), f"float8_{first}")
    b = Tensor((k, n), f"float8_{second}", stride=(1, k))
    by_row = first == second and draw.chance(0.3)
    scales = (Tensor((m, 1), "float32"), Tensor((1, n), "float32")) if by_row else (Tensor((), "float32"),) * 2
    options: dict[str, Value] = {"out_dtype": Constant("dtype", "bfloat16"), "use_fast_accum": draw.chance(0.6)}
    return Op("aten::_scaled_mm", (a, b, *scales), options, overload="default")


def _grouped(draw: Draw) -> Op:
    """One GEMM per expert over the rows routed to it; or the gradients of the experts' weights."""
    inner = 64 * draw.whole(2, max(2, min(96, draw.most // 2**15)))
    width = 64 * draw.whole(2, max(2, min(64, draw.most // (2**8 * inner))))
    groups = draw.whole(2, max(2, min(128, draw.most // (width * inner))))
    rows = 8 * draw.whole(8, max(8, min(8192, draw.most // (8 * max(width, inner)))))
    ends = Tensor((groups,), "int32")
    if draw.chance(0.35):
        shape, x = (inner, rows), _dense((rows, width), "bfloat16")
        return Op(GROUPED, (Tensor(shape, "bfloat16", stride=(1, inner)), x, ends), overload="default")
    shapes = (groups, inner, width)
    experts = Tensor(shapes, "bfloat16", stride=strides(shapes, (0, 2, 1) if draw.chance(0.6) else None))
    return Op(GROUPED, (_dense((rows, inner), "bfloat16"), experts, ends), overload="default")


def _draw_sizes(draw: Draw) -> tuple[int, int, int]:
    side = min(16384, draw.most)
    style = draw.weighted({"any": 9, "layer": 6, "skinny": 3, "vocabulary": 2})
    if style == "any":
        sizes = [draw.size(16, side) for _ in range(3)]
    elif style == "layer":
        # A linear layer: rows of tokens or samples, two widths. In its backward the rows are the inner dimension.
        sizes = [draw.size(64, 4 * side), draw.size(16, side // 2), draw.size(16, side // 2)]
    elif style == "skinny":
        sizes = [draw.whole(1, 64), draw.size(16, side), draw.size(16, side)]
    else:
        sizes = [draw.size(64, side), draw.whole(1000, 160000), draw.size(64, side // 4)]
    draw.random.shuffle(sizes)
    return _within(sizes, draw.most)


def _within(sizes: list[int], most: int) -> tuple[int, int, int]:
    """The sizes, the largest halved until each of the three matrices fits."""
    while True:
        _, middle, high = sorted(sizes)
        if middle * high <= most or high == 1:
            return sizes[0], sizes[1], sizes[2]
        sizes[sizes.index(high)] = high // 2


def _batched_sizes(draw: Draw) -> tuple[int, int, int, int]:
    sizes = [draw.size(4, 2048) for _ in range(3)]
    if draw.chance(0.15):  # a few numbers a sample: maps of points, mixtures of a few
        sizes[draw.random.randrange(3)] = draw.whole(1, 8)
    m, n, k = _within(sizes, draw.most)
    largest = max(m * n, n * k, m * k)
    return draw.size(1, max(1, min(16384, draw.most // largest))), m, n, k


def _interaction(draw: Draw, dtype: str) -> Op:
    """DLRM's interaction: all pairwise products of a sample's feature vectors."""
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
        # A slice of a wider matrix.
        wider = (*shape[:-1], shape[-1] + draw.size(1, shape[-1]))
        stride = strides(wider)
    return Tensor(shape, dtype, stride=stride)
