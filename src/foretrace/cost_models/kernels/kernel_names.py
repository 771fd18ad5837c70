"""Names of library kernels, parsed: the tile of a GEMM or convolution kernel, its maker, and the kernels around
it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

UNNAMED_DEPTH = 32
"""Depth of a tile whose kernel name does not give it."""
HELPERS = (
    (r"nchwTo\w*Nhwc", ">"),
    (r"[nN]hwcToNchw", "<"),
    (r"Folded|Padding|tensorTransform", "p"),
    (r"convert|scalePacked", "c"),
    (r"winograd_nonfused", "w"),
    (r"elementwise", "e"),
    (r"splitKreduce|reduction|_reduce\b|reduce_wgrad", "r"),
    (r"^Mem|init_device|precompute_indices|[oO]ffsets|helper", ""),
)
"""Kernels of a convolution that convolve nothing, by parts of their names, and a letter for what they do: layout
changes, padding, dtype conversions, a transform, copies, sums; no letter for those that take no time."""
SEVERAL_CONVOLVE = "2"
"""Letter for more than one kernel that convolves."""

_GEMM_HELPER = re.compile(r"splitKreduce|elementwise|epilogue|reduce_1Block")
_SPLIT_K = re.compile(r"splitK|split_k")
_NVJET = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_(\d+)x\d+_\d+x\d+_[hv]_(\w*)")
_XMMA = re.compile(r"(sm\d+_xmma)\w*?_tilesize(\d+)x(\d+)x(\d+)")
_CUTLASS = re.compile(r"(cutlass_\d+_\w*?gemm\w*?)_(\d+)x(\d+)(?:_(\d+)x\d+)?_[nt]{2}_(align\d)")

_IMPLICIT_GEMM = "ImplicitGemm"
"""A name with this is never a helper's, whatever else it contains."""
_TILED = (
    re.compile(r"(sm\d+_xmma_\w+?)_tilesize(\d+)x(\d+)x(\d+)_(\w*)"),
    re.compile(r"(cutlass_\w+?)_(\d+)x(\d+)(?:_(\d+)x\d+)?_(\w+)"),
    re.compile(r"(_ZN\d+cutlass)\w*?GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E(\w*)"),
)
"""Maker, sides and depth of the tile, and the rest of a convolution kernel's name."""
_VARIANTS = re.compile(r"segment_k_\w+?(?=_)|ffma|strided|(?<=_)g(?!1_)\d+(?=_)|align\d|(?<![a-z])[nt]{2}(?=_)|Group")
"""What in the rest distinguishes kernels of one maker."""
_DTYPES = re.compile(r"_(?:[bt]?f(?:16|32))+_(?:[bt]?f(?:16|32))+_f32(?=_)|_(?:b?f16|tf32)(?=_)|(?<=_)b(?=s\d)")
_ROWS_FIRST = re.compile("fprop|dgrad|wgrad|ImplicitGemm")
"""Such kernels name the tile's side along the rows of the result first, others the side along its columns."""
_TEMPLATE_DTYPES = re.compile(r"__nv_bfloat16|__half|c10::\w+|float")


class TiledKernel(NamedTuple):
    """The kernel that does the work of a GEMM or a convolution, as its name describes it."""

    maker: str
    """Library and variant: what tells kernels of one tile apart."""
    first: int = 0
    """Side of the tile along the result's columns; 0 where the name gives no tile."""
    second: int = 0
    """Side along its rows."""
    depth: int = 0
    split: bool = False
    """Whether the inner dimension is split over blocks (split-K)."""
    around: str = ""
    """A letter for each kind of helper kernel that runs before or after it."""


def gemm_kernel(names: Sequence[str]) -> TiledKernel:
    """The kernel that multiplied, from the names of all kernels of a call.

    >>> gemm_kernel(["nvjet_sm90_tst_64x40_64x16_4x2_h_bz_splitK_NNT", "void cublasLt::splitKreduce_kernel<32, 16>"])
    TiledKernel(maker='nvjet_splitK', first=64, second=40, depth=64, split=True, around='')
    """
    main = next((name for name in names if not name.startswith("Mem") and not _GEMM_HELPER.search(name)), names[0])
    split = any(_SPLIT_K.search(name) for name in names)
    if found := _NVJET.search(main):
        first, second, depth, rest = found.groups()
        variants = (f"_{variant}" for variant in ("coopA", "coopB", "splitK") if variant in rest)
        return TiledKernel("nvjet" + "".join(variants), int(first), int(second), int(depth), split)
    if found := _XMMA.search(main):
        maker, first, second, depth = found.groups()
        return TiledKernel(maker, int(first), int(second), int(depth), split)
    if found := _CUTLASS.search(main):
        maker, first, second, depth, aligned = found.groups()
        maker = f"{maker}_{aligned}".replace("_f16", "_bf16")  # the same kernel but for the dtype
        return TiledKernel(maker, int(first), int(second), int(depth or UNNAMED_DEPTH), split)
    return TiledKernel(main.split("<")[0])


def convolution_kernel(names: Sequence[str]) -> TiledKernel:
    """The kernel that convolved, by the names of all kernels of a call. Dtypes, which the call tells, are left out."""
    roles = [_helper_letter(name) for name in names]
    working = [name for name, letter in zip(names, roles) if letter is None] or names[:1]
    around = "".join(sorted({letter for letter in roles if letter}))
    return _convolution_kernel(working[0])._replace(around=around + SEVERAL_CONVOLVE * (len(working) > 1))


@cache
def _helper_letter(name: str) -> str | None:
    """The letter of a helper kernel; None for one that convolves."""
    if _IMPLICIT_GEMM in name:
        return None
    return next((letter for pattern, letter in HELPERS if re.search(pattern, name)), None)


@cache
def _convolution_kernel(name: str) -> TiledKernel:
    plain = _DTYPES.sub("", name)
    found = next((match for pattern in _TILED if (match := pattern.search(plain))), None)
    if found:
        maker, first, second, depth, rest = found.groups()
        variants = "".join(f"_{variant}" for variant in sorted(set(_VARIANTS.findall(rest))))
        if _ROWS_FIRST.search(name):
            first, second = second, first
        return TiledKernel(maker + variants, int(first), int(second), int(depth or UNNAMED_DEPTH))
    if "nvjet" in name:
        return gemm_kernel([name])
    return TiledKernel(_TEMPLATE_DTYPES.sub("", plain.replace("(anonymous namespace)::", "").split("(")[0]))
