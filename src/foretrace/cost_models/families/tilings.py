"""How kernels of matrix products cut up their work: for a call, what each of some ways would mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
