"""Operators that only one kind of device has, by operators of another. To add one, add a function and a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _arguments(operator: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names in the operator's schema; what it leaves out is missing."""
    schema = getattr(aten, operator).default._schema
    return dict(zip((argument.name for argument in schema.arguments), args)) | kwargs


def _bias_and_options(given: dict[str, Any]) -> tuple[Tensor | None, dict[str, Any]]:
    """The bias of an attention, and the keywords that its operator on CPUs takes."""
    bias = given.get("attn_bias")
    mask = bias if bias is not None and bias.numel() else None
    return bias, {"is_causal": given.get("is_causal", False), "attn_mask": mask, "scale": given.get("scale")}


def _forward(operator: str) -> Callable[..., tuple[Any, ...]]:
    """An attention of GPUs on a CPU, without dropout; results that only its gradients read are empty."""

    def attention(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = _arguments(operator, args, kwargs)
        query, key = given["query"], given["key"]
        on_cpu = aten._scaled_dot_product_flash_attention_for_cpu.default
        made = on_cpu(query, key, given["value"], 0.0, **_bias_and_options(given)[1])
        sizes = {"max_q": query.shape[2], "max_k": key.shape[2]}
        rest = getattr(aten, operator).default._schema.returns[2:]
        return *made, *(sizes.get(result.name, query.new_empty(0)) for result in rest)

    return attention


def _backward(operator: str) -> Callable[..., tuple[Any, ...]]:
    """The gradients of such an attention; a bias gets zeros."""

    def gradients(gradient: Tensor, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = _arguments(operator, (gradient, *args), kwargs)
        query, key, value = given["query"], given["key"], given["value"]
        # GPUs pad these sums, or give them one dimension more.
        sums = given["logsumexp"].reshape(*query.shape[:2], -1)[..., : query.shape[2]]
        bias, options = _bias_and_options(given)
        on_cpu = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        made = on_cpu(gradient, query, key, value, given["out"], sums, 0.0, **options)
        if "grad_input_mask" not in given:
            return tuple(made)
        wanted = bias is not None and given["grad_input_mask"][3]
        return *made, torch.zeros_like(bias) if wanted else query.new_empty(0)

    return gradients


flash_attention = _forward("_scaled_dot_product_flash_attention")
flash_attention_backward = _backward("_scaled_dot_product_flash_attention_backward")
efficient_attention = _forward("_scaled_dot_product_efficient_attention")
efficient_attention_backward = _backward("_scaled_dot_product_efficient_attention_backward")
cudnn_attention = _forward("_scaled_dot_product_cudnn_attention")
cudnn_attention_backward = _backward("_scaled_dot_product_cudnn_attention_backward")


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
