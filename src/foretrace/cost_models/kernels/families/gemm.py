"""Matrix products: tiles, waves, alignment and transposition."""

from __future__ import annotations

import math
from collections.abc import Sequence

from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import alignment, log
from foretrace.cost_models.kernels.kernel_names import SIDES, Kernel
from foretrace.graph import Op, Tensor

PLAIN = ("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_int_mm", "aten::_grouped_mm", "aten::mv")
ADDING = ("aten::addmm", "aten::baddbmm", "aten::addmv", "aten::_addmm_activation", "aten::addbmm")
RATES = ("bfloat16", "float16", "float32", "tf32", "float64", "float8_e4m3fn", "int8")
TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (256, 128), (128, 256), (32, 32), (192, 128))
MAKERS = ("nvjet", "xmma", "cutlass_75")
"""Kinds of kernels, by a piece of their names."""


class MatrixProduct(Family):
    """Rows times columns."""

    name = "matrix"
    ops = (*PLAIN, *ADDING)
    columns = (
        "op", "groups", "rate", "turned_a", "turned_b", "added", "batched", "batch", "m", "n", "k", "flops", "bytes",
        "roof", "intensity",
        "m_aligned", "n_aligned", "k_aligned", "row_a_aligned", "row_b_aligned", "least_aligned", "rows", "results",
        "m_exact", "n_exact", "k_exact", "m_left", "n_left", "k_left", "same", "repeated",
        *(f"{what}_{a}x{b}" for a, b in TILES for what in ("tiles", "ragged", "filled")), "processors",
    )  # fmt: skip

    sides = SIDES

    def takes(self, op: Op) -> bool:
        """Calls whose two matrices are known."""
        return len(op.tensors) > 1 + (op.name in ADDING)

    def describe(self, op: Op, facts: Facts) -> Described:
        """Sizes, layouts, and how the result falls into tiles."""
        tensors = op.tensors
        first = 1 if op.name in ADDING else 0
        a, b = tensors[first], tensors[first + 1]
        batch, m, n, k = _sizes(a, b)
        groups = tensors[2].numel if op.name == "aten::_grouped_mm" and len(tensors) > 2 else 0
        rate = "tf32" if a.dtype == "float32" and facts.tf32 else a.dtype
        turned_a, row_a = _layout(a)
        turned_b, row_b = _layout(b)
        work = Work(2 * batch * m * n * k, a.itemsize * batch * (m * k + k * n + m * n), rate)
        added = 1 + len(tensors[0].shape) if first else 0
        repeated = log(batch * m * n / max(1, tensors[0].numel)) if first else 0.0
        features: list[float] = [
            self.ops.index(op.name), log(groups), RATES.index(rate) if rate in RATES else -1, turned_a, turned_b, added,
            len(a.shape) == 3, log(batch), log(m), log(n), log(k), log(work.flops), log(work.bytes),
            log(work.us(facts.device)), log(work.flops / max(1.0, work.bytes)),
            alignment(m), alignment(n), alignment(k), alignment(row_a), alignment(row_b),
            min(alignment(row_a), alignment(row_b), alignment(n)), log(batch * m), log(batch * m * n), m, n, k, m % 128,
            n % 128, k % 64, a.storage >= 0 and a.storage == b.storage, repeated,
        ]  # fmt: skip
        for tile_m, tile_n in TILES:
            tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch
            waves = tiles / facts.device.sms
            features += (log(tiles), math.ceil(waves) / waves, batch * m * n / (tiles * tile_m * tile_n))
        features.append(facts.device.sms)
        return Described(features, work)

    def latents(self, kernels: Sequence[str]) -> tuple[float, ...]:
        """Tile, splitting, helpers and maker of what ran.

        >>> MatrixProduct().latents(["Memset (Device)", "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"])[:4]
        (7.0, 8.0, 6.0, False)
        """
        kernel = Kernel.of(kernels)
        tile = (log(side) for side in (kernel.first, kernel.second, kernel.depth))
        return (*tile, kernel.split, len(kernels), *(maker in kernel.maker for maker in MAKERS))

    def kernel(self, kernels: Sequence[str]) -> Kernel:
        """The kernel that multiplied."""
        return Kernel.of(kernels)


def _sizes(a: Tensor, b: Tensor) -> tuple[int, int, int, int]:
    """Batch, rows, columns, depth; a size of none counts as one."""
    batch = a.shape[0] if len(a.shape) == 3 and len(b.shape) == 3 else 1
    m, k = a.shape[-2:] if len(a.shape) > 1 else (1, a.numel)
    n = b.shape[-1] if len(b.shape) > 1 else 1
    return max(1, batch), max(1, m), max(1, n), max(1, k)


def _layout(matrix: Tensor) -> tuple[int, int]:
    """Whether columns are what lies side by side, and how far apart the rows, or columns, are."""
    stride = matrix.stride
    if stride is None or len(matrix.shape) < 2:
        return 0, matrix.shape[-1] if matrix.shape else 1
    if stride[-1] == 1 and (stride[-2] >= matrix.shape[-1] or stride[-2] != 1):
        return 0, stride[-2]
    return (1, stride[-1]) if stride[-2] == 1 else (2, stride[-2])
