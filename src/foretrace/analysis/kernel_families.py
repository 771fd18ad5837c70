"""The family of a kernel, by its name and that of its op: how reports group device time.

Some kernels say all by themselves (a copy, a collective). Of the others the op knows best what they are for: a
layout change inside a convolution is a part of it. Where the op says nothing, the kernel's own name does.
Within each list the first rule that matches wins.
"""

from __future__ import annotations

import re
from functools import cache

FAMILIES = (
    "matrix product", "convolution", "attention", "lookup", "element-wise", "copy", "reduction", "norm", "softmax",
    "optimizer", "sort/index", "communication", "memset", "compiled", "other",
)  # fmt: skip

Rules = tuple[tuple[str, re.Pattern[str]], ...]


def _rules(*patterns: tuple[str, str]) -> Rules:
    return tuple((family, re.compile(pattern)) for family, pattern in patterns)


_PLAIN_KERNELS = _rules(
    ("communication", r"(?i)nccl|rccl"),
    ("memset", r"^Memset|fillBuffer"),
    ("copy", r"^Memcpy|copyBuffer"),
    ("compiled", r"^triton_"),
)

_OPS = _rules(
    ("communication", r"^c10d|^nccl:|^gloo:|record_param_comms|all_?reduce|all_?gather|reduce_scatter|all_?to_?all"),
    ("compiled", r"^triton_"),
    ("convolution", r"conv"),
    ("attention", r"attention|sdpa"),
    ("lookup", r"embedding|[lL]ookup|fbgemm|^fb::"),
    ("optimizer", r"_foreach_|_fused_|^Optimizer\.step|multi_tensor"),
    ("softmax", r"[sS]oftmax|nll_loss|cross_entropy"),
    ("norm", r"(?i)(layer|batch|group|rms|instance)_?norm"),
    ("matrix product", r"::(_?addmm|_?addbmm|mm|bmm|baddbmm|matmul|linear|mv|addmv|dot|vdot|_scaled_mm|_grouped_mm)\b"),
    ("sort/index", r"::_?(index|gather|scatter|sort|topk|unique|cumsum|nonzero|masked_|searchsorted|tri[lu])"),
    ("copy", r"::(_?cat|copy_?|_?to_copy|clone|contiguous|stack|repeat|pad|constant_pad_nd|flip|roll)\b"),
    ("reduction", r"::(sum|mean|amax|amin|max|min|argmax|argmin|prod|var|std|norm|linalg_vector_norm)\b|_pool\d"),
    ("element-wise", r"::(add|r?sub|mul|div|pow|r?sqrt|exp|log|abs|neg|where|clamp|fill|zero|eq|ne|[lg][te])_?\b"),
    ("element-wise", r"relu|gelu|silu|tanh|sigmoid|threshold|dropout|bernoulli|normal_|uniform_|rand|addc|lerp"),
)  # fmt: skip

_KERNELS = _rules(
    ("attention", r"flash_|fmha|attn_[fb]wd|sdpa"),
    ("lookup", r"(?i)embedding|pooled_embs"),
    ("norm", r"(?i)(layer|batch|rms|group)_?norm|bn_[fb]w|ln_[fb]wd|GammaBeta|RowwiseMoments"),
    ("softmax", r"(?i)softmax"),
    ("optimizer", r"multi_tensor_apply|FusedOptimizer"),
    ("copy", r"copy_kernel|copy_async|CatArray|transpose_kernel"),
    ("element-wise", r"elementwise_kernel|dropout|distribution_"),
    ("matrix product", r"splitK"),
    ("reduction", r"reduce_kernel"),
    ("sort/index", r"cub::|thrust::|rocprim|[iI]ndex|gather|scatter|[sS]ort"),
    ("convolution", r"fprop|dgrad|wgrad|implicit_gemm|[cC]onvol|nchwToNhwc|nhwcToNchw|winograd"),
    ("matrix product", r"(?<!fb)gemm|gemv|cutlass|nvjet|Cijk_|cublas|(?<!fb)GEMM"),
)


@cache
def kernel_family(kernel: str, op: str = "") -> str:
    """The family of a kernel that an op launched; with no kernel's name, that of the op.

    >>> kernel_family("ampere_fp16_s16816gemm_fp16_128x128_tn"), kernel_family("Cijk_Ailk_Bljk_BBS_BH_MT64x32x64")
    ('matrix product', 'matrix product')
    >>> kernel_family("Memset (Device)", "aten::mm"), kernel_family("nchwToNhwcKernel", "aten::cudnn_convolution")
    ('memset', 'convolution')
    >>> kernel_family("", "aten::native_layer_norm")
    'norm'
    """
    for rules, name in ((_PLAIN_KERNELS, kernel), (_OPS, op), (_KERNELS, kernel)):
        for family_name, pattern in rules:
            if pattern.search(name):
                return family_name
    return "other"
