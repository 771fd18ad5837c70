"""How kernels of matrix products cut up their work: for a call, what each of some ways would mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SIDES = ("batch", "m", "n", "k", "processors")
"""What says how large a product is, the first four as logarithms to base 2, and how many multiprocessors share it."""
_HELPER = re.compile(r"splitKreduce|elementwise|epilogue|reduce_1Block")
_SPLIT = re.compile(r"splitK|split_k")
_NVJET = re.compile(r"nvjet_\w+?_(\d+)x(\d+)_(\d+)x\d+_\d+x\d+_[hv]_(\w*)")
_XMMA = re.compile(r"(sm\d+_xmma)\w*?_tilesize(\d+)x(\d+)x(\d+)")
_CUTLASS = re.compile(r"(cutlass_\d+_\w*?gemm\w*?)_(\d+)x(\d+)(?:_(\d+)x\d+)?_[nt]{2}_(align\d)")
PLAIN_DEPTH = 32
"""Depth of a tile where a name does not tell it."""
SEVERAL = ((32, 32, (2, 4, 8, 16)), (64, 64, (2, 3, 4, 8)), (64, 32, (4, 8)), (32, 64, (4, 8)), (128, 64, (2, 3)),
           (64, 128, (2, 3)), (128, 128, (2,)), (128, 32, (2, 4)), (32, 128, (2, 4)), (256, 64, (1, 2)),
           (64, 256, (1, 2)), (256, 128, (2,)), (128, 256, (2,)))  # fmt: skip
"""Tiles, and how many of them a multiprocessor may work on at a time."""
NARROW = ((64, 8), (64, 16), (64, 24), (64, 40), (8, 64), (16, 64), (24, 64), (64, 32), (32, 64), (128, 32), (32, 128),
          (256, 64), (64, 256), (96, 128), (128, 96), (160, 128), (128, 160), (128, 192), (128, 208),
          (256, 256))  # fmt: skip
"""Tiles of the kernels that are made for one device."""
STEPS = (8, 16, 32, 64, 128, 256)
"""What a side may have to be a multiple of."""
AT_A_TIME = (2, 3, 4, 8)


class Kernel(NamedTuple):
    """The kernel that does a product's work. A tile's first side lies along the result's columns, as libraries have it.

    >>> Kernel.of(["nvjet_sm90_tst_64x40_64x16_4x2_h_bz_splitK_NNT", "void cublasLt::splitKreduce_kernel<32, 16>"])
    Kernel(maker='nvjet_splitK', first=64, second=40, depth=64, split=True, around='')
    """

    maker: str
    first: int = 0
    second: int = 0
    depth: int = 0
    split: bool = False
    around: str = ""
    """A letter for each kind of kernel that runs before or after it."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Kernel:
        """What the names of a call's kernels tell."""
        main = next((name for name in names if not name.startswith("Mem") and not _HELPER.search(name)), names[0])
        split = any(_SPLIT.search(name) for name in names)
        if found := _NVJET.search(main):
            first, second, depth, rest = found.groups()
            ways = (f"_{way}" for way in ("coopA", "coopB", "splitK") if way in rest)
            return cls("nvjet" + "".join(ways), int(first), int(second), int(depth), split)
        if found := _XMMA.search(main):
            maker, first, second, depth = found.groups()
            return cls(maker, int(first), int(second), int(depth), split)
        if found := _CUTLASS.search(main):
            maker, first, second, depth, aligned = found.groups()
            maker = f"{maker}_{aligned}".replace("_f16", "_bf16")  # the same but for what a number means
            return cls(maker, int(first), int(second), int(depth or PLAIN_DEPTH), split)
        return cls(main.split("<")[0])


def tiled(sides: Floats) -> Floats:
    """What the size of a call means for many tilings: waves that are not full, and sides that are not.

    Parameters
    ----------
    sides
        A row per call, as `SIDES` has them.
    """
    batch, m, n, k, processors = _sizes(sides)
    columns = []
    for first, second, several in SEVERAL:
        waves = np.ceil(m / first) * np.ceil(n / second) * batch / processors
        columns += [_log(np.ceil(waves / count) / (waves / count)) for count in several]
    for first, second in NARROW:
        tiles = np.ceil(m / first) * np.ceil(n / second) * batch
        waves = tiles / processors
        columns += [_log(tiles), _log(np.ceil(waves) / waves), m * n * batch / (tiles * first * second)]
    columns += [_log(np.ceil(side / step) * step / side) for side in (m, n, k) for step in STEPS]
    return np.stack(columns, axis=1)


def on_kernel(sides: Floats, tiles: Floats) -> Floats:
    """What each call means for one kernel: tiles, waves and steps, of which the busiest multiprocessor has the most.

    Parameters
    ----------
    sides
        A row per call, as `SIDES` has them.
    tiles
        For each call first, second, depth and split of a kernel; a first of 0 is a kernel that is not known.
    """
    batch, m, n, k, processors = _sizes(sides)
    known, split = tiles[:, 0] > 0, tiles[:, 3]
    first, second, depth = np.maximum(tiles[:, :3], 1).T
    count = np.ceil(n / first) * np.ceil(m / second) * batch
    waves, steps = count / processors, np.ceil(k / depth)
    most = np.ceil(waves)
    loaded = batch * k * (n * np.ceil(m / second) + m * np.ceil(n / first))
    columns = [
        *map(_log, (first, second, depth, count, steps, most / waves, most, most * steps, loaded)),
        *map(_log, (most * steps * depth * first * second, (most + 1) * steps * depth)),
        split, n * m * batch / (count * first * second), 1 / waves,
        *(_log(np.ceil(waves / each) / (waves / each)) for each in AT_A_TIME),
    ]  # fmt: skip
    return np.stack(columns, axis=1) * known[:, None]


def _sizes(sides: Floats) -> Floats:
    """The sizes themselves, a row for each of `SIDES`."""
    sizes = sides.T.copy()
    sizes[:4] = np.round(2.0 ** sizes[:4])
    return sizes


def _log(values: Floats) -> Floats:
    return np.asarray(np.log2(values))


# --- was cost_models.kernels.families.engines: Which kernel did a convolution, and what ran around it, as the names of all that ran tell.

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
"""Kernels that convolve nothing, by pieces of their names, and a letter for what they are there for: changes of layout,
padding, dtypes, a transform, copies, sums; none for what takes no time."""
SEVERAL_ENGINES = "2"
"""Stands for more than one kernel that convolves."""
_WORKS = "ImplicitGemm"
"""A name with this is never a helper's, whatever it is made with."""
_TILED = (
    re.compile(r"(sm\d+_xmma_\w+?)_tilesize(\d+)x(\d+)x(\d+)_(\w*)"),
    re.compile(r"(cutlass_\w+?)_(\d+)x(\d+)(?:_(\d+)x\d+)?_(\w+)"),
    re.compile(r"(_ZN\d+cutlass)\w*?GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E(\w*)"),
)
"""Who made a kernel, the sides and the depth of its tiles, and the rest of its name."""
_WAYS = re.compile(r"segment_k_\w+?(?=_)|ffma|strided|(?<=_)g(?!1_)\d+(?=_)|align\d|(?<![a-z])[nt]{2}(?=_)|Group")
"""What in the rest tells kernels of one maker apart."""
_DTYPES = re.compile(r"_(?:[bt]?f(?:16|32))+_(?:[bt]?f(?:16|32))+_f32(?=_)|_(?:b?f16|tf32)(?=_)|(?<=_)b(?=s\d)")
_CONVOLVES = re.compile("fprop|dgrad|wgrad|ImplicitGemm")
"""Such kernels name the side of a tile first that lies along the rows of the product, others that along its columns."""
_TEMPLATE_DTYPES = re.compile(r"__nv_bfloat16|__half|c10::\w+|float")


def engine(names: Sequence[str]) -> Kernel:
    """The kernel that convolved, by the names of all that a call ran; a dtype, which the call tells, is no part of it.

    >>> long = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_warpgroupsize1x1x1_g1"
    >>> engine([long, "nhwcToNchwKernel<float>"])
    Kernel(maker='sm90_xmma_fprop_implicit_gemm_nhwckrsc_nhwc', first=128, second=64, depth=32, split=False, around='<')
    """
    helps = [_help(name) for name in names]
    working = [name for name, letter in zip(names, helps) if letter is None] or names[:1]
    around = "".join(sorted({letter for letter in helps if letter}))
    return _named(working[0])._replace(around=around + SEVERAL_ENGINES * (len(working) > 1))


@cache
def _help(name: str) -> str | None:
    """What a helper is there for; None for what works."""
    if _WORKS in name:
        return None
    return next((letter for words, letter in HELPERS if re.search(words, name)), None)


@cache
def _named(name: str) -> Kernel:
    """The kernel that a name says."""
    plain = _DTYPES.sub("", name)
    found = next((match for pattern in _TILED if (match := pattern.search(plain))), None)
    if found:
        maker, first, second, depth, rest = found.groups()
        ways = "".join(f"_{way}" for way in sorted(set(_WAYS.findall(rest))))
        if _CONVOLVES.search(name):
            first, second = second, first
        return Kernel(maker + ways, int(first), int(second), int(depth or PLAIN_DEPTH))
    if "nvjet" in name:
        return Kernel.of([name])
    return Kernel(_TEMPLATE_DTYPES.sub("", plain.replace("(anonymous namespace)::", "").split("(")[0]))
