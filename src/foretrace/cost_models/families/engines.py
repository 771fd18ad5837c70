"""Which kernel did a convolution, and what ran around it, as the names of all that ran tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from foretrace.cost_models.families.tilings import PLAIN_DEPTH, Kernel

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
SEVERAL = "2"
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
    return _named(working[0])._replace(around=around + SEVERAL * (len(working) > 1))


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
