"""Switches of PyTorch by which the same call takes other kernels, or other time."""

from __future__ import annotations

import torch


def settings() -> dict[str, bool | int | str]:
    """The switches as they are now.

    >>> settings()["cudnn_benchmark"]
    False
    """
    matmul = torch.backends.cuda.matmul
    return {
        "threads": torch.get_num_threads(),
        "matmul_precision": _matmul_precision(),
        "reduced_bf16": bool(matmul.allow_bf16_reduced_precision_reduction),
        "reduced_fp16": bool(matmul.allow_fp16_reduced_precision_reduction),
        "cudnn_tf32": _cudnn_tf32(),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
    }


def _matmul_precision() -> str:
    """``highest`` where products of float32 keep to float32, ``high`` or ``medium`` where they may run as TF32."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # the script says fp32_precision, and PyTorch refuses to answer in the older words
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


def _cudnn_tf32() -> bool:
    """Whether convolutions of float32 may run as TF32."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # as above
        return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")
