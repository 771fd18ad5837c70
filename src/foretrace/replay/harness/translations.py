"""Operators that only one kind of device has, by operators of another. To add one, add a function and a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Flash attention on a CPU, without dropout."""
    made = _attention(query, key, value, None, is_causal, scale)
    nothing = query.new_empty(0)
    return *made, nothing, nothing, query.shape[2], key.shape[2], nothing, nothing, nothing


def flash_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Any,
    cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, *_: Any, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of `flash_attention`."""
    return _attention_backward(gradient, query, key, value, None, out, logsumexp, is_causal, scale)


def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """As `flash_attention`, with a bias."""
    nothing = query.new_empty(0)
    return *_attention(query, key, value, bias, is_causal, scale), nothing, nothing


def efficient_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor,
    seed: Any, offset: Any, dropout_p: float, wanted: Sequence[bool], is_causal: bool = False, *,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of `efficient_attention`; a bias gets none."""
    made = _attention_backward(gradient, query, key, value, bias, out, logsumexp, is_causal, scale)
    return *made, torch.zeros_like(bias) if bias is not None and wanted[3] else query.new_empty(0)


def cudnn_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """As `efficient_attention`, with more outputs."""
    nothing = query.new_empty(0)
    made = _attention(query, key, value, bias, is_causal, scale)
    return *made, nothing, nothing, query.shape[2], key.shape[2], nothing, nothing, nothing


def cudnn_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, seed: Any, offset: Any,
    bias: Tensor | None, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of `cudnn_attention`."""
    return _attention_backward(gradient, query, key, value, bias, out, logsumexp, is_causal, scale)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    made: tuple[Tensor, Tensor] = forward(query, key, value, 0.0, is_causal, attn_mask=_bias(bias), scale=scale)
    return made


def _attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, logsumexp: Tensor,
    is_causal: bool, scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    # GPUs pad these sums, or give them one dimension more.
    sums = logsumexp.reshape(*query.shape[:2], -1)[..., : query.shape[2]]
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    made: tuple[Tensor, ...] = backward(
        gradient, query, key, value, out, sums, 0.0, is_causal, attn_mask=_bias(bias), scale=scale
    )
    return made


def _bias(bias: Tensor | None) -> Tensor | None:
    return bias if bias is not None and bias.numel() else None


def cpu_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of a CPU on a GPU."""
    forward = aten._scaled_dot_product_efficient_attention.default
    out, sums, _, _ = forward(query, key, value, attn_mask, True, 0.0, is_causal, scale=scale)
    return out, sums


def cpu_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of `cpu_attention`."""
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    wanted = [True, True, True, False]
    made = backward(
        gradient, query, key, value, attn_mask, out, logsumexp, seed, seed, 0.0, wanted, is_causal, scale=scale
    )
    return tuple(made[:3])


def batch_norm(given: Tensor, *more: Any) -> tuple[Tensor, ...]:
    """The batch norm that every device has, plus the reserve space that cuDNN returns."""
    return *aten.native_batch_norm.default(given, *more), given.new_empty(0)


def batch_norm_backward(
    given: Tensor, gradient: Tensor, weight: Tensor, running_mean: Any, running_var: Any, save_mean: Any, save_var: Any,
    epsilon: float, reserve: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of `batch_norm`."""
    statistics = (running_mean, running_var, save_mean, save_var)
    made: tuple[Tensor, ...] = aten.native_batch_norm_backward.default(
        gradient, given, weight, *statistics, True, epsilon, [True, True, True]
    )
    return made


SUBSTITUTES: dict[str, dict[str, str]] = {
    "cpu": {
        "aten._scaled_dot_product_flash_attention.default": "flash_attention",
        "aten._scaled_dot_product_flash_attention_backward.default": "flash_attention_backward",
        "aten._scaled_dot_product_efficient_attention.default": "efficient_attention",
        "aten._scaled_dot_product_efficient_attention_backward.default": "efficient_attention_backward",
        "aten._scaled_dot_product_cudnn_attention.default": "cudnn_attention",
        "aten._scaled_dot_product_cudnn_attention_backward.default": "cudnn_attention_backward",
        "aten.cudnn_batch_norm.default": "batch_norm",
        "aten.cudnn_batch_norm_backward.default": "batch_norm_backward",
    },
    "cuda": {
        "aten._scaled_dot_product_flash_attention_for_cpu.default": "cpu_attention",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": "cpu_attention_backward",
    },
}
"""By kind of device, the operators it lacks and the functions above that replace them."""


VIEW, COPY = "aten.view.default(", "aten.reshape.default("
NO_VIEW = "view size is not compatible"
"""Error of a view whose tensor has another layout than in the original: devices differ in the strides of results."""


def reshape_for_view(call: str, error: str) -> str | None:
    """The reshape that replaces a view which the strides on this device do not allow; None for other errors.

    >>> reshape_for_view("aten.view.default(t1, [4])", "view size is not compatible with input tensor's size")
    'aten.reshape.default(t1, [4])'
    """
    return COPY + call.removeprefix(VIEW) if call.startswith(VIEW) and NO_VIEW in error else None


def translate_call(call: str, kind: str) -> str | None:
    """The call that replaces one on a kind of device without its operator; None where it has the operator.

    >>> translate_call("aten.cudnn_batch_norm.default(t1)", "cpu"), translate_call("aten.mm.default(t1, t2)", "cpu")
    ('translations.batch_norm(t1)', None)
    """
    name, _, arguments = call.partition("(")
    function = SUBSTITUTES.get(kind, {}).get(name)
    return f"translations.{function}({arguments}" if function else None
