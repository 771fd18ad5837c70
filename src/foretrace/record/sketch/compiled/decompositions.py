"""How AOTAutograd takes calls apart for a GPU: TorchInductor's decompositions, but for those that ask for the device.

Graphs are traced on fake CPU tensors, where some decompositions do what only a CPU needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
FOR_CPU_ALONE = (aten.mm.default, aten.addmm.default, aten.bmm.default)
"""Calls that stay as they are on a GPU."""
NORMS = (
    aten.native_layer_norm.default, aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_functional.default,
)  # fmt: skip
"""Norms whose statistics a CPU keeps in the dtype of the data, and a GPU in float32."""


def for_gpu(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The decompositions of a table as they are on a GPU."""
    chosen = {op: decompose for op, decompose in table.items() if op not in FOR_CPU_ALONE}
    chosen |= {op: _in_float32(chosen[op]) for op in NORMS if op in chosen}
    if group_norm := chosen.get(aten.native_group_norm.default):
        chosen[aten.native_group_norm.default] = _in_float32(_scaled_at_last(group_norm))
    return chosen | {
        aten.convolution_backward.default: convolution_backward,
        aten.bernoulli.p: bernoulli,
        aten.bernoulli_.float: lambda x, p=0.5, **_: x.copy_(bernoulli(x, p)),
    }


def _in_float32(decompose: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(decompose)
    def norm(input: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if input.dtype not in HALF:
            return decompose(input, *rest, **options)
        result, *statistics = decompose(input.to(torch.float32), *rest, **options)
        return result.to(input.dtype), *statistics

    return norm


def _scaled_at_last(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """Group norm with weights: a CPU multiplies its statistics with them first."""

    @wraps(decompose)
    def norm(input: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
        result, *statistics = decompose(input, None, None, *rest)
        sizes = (1, -1, *[1] * (input.dim() - 2))
        if weight is not None:
            result = result * weight.reshape(sizes)
        if bias is not None:
            result = result + bias.reshape(sizes)
        return result, *statistics

    return norm


def convolution_backward(grad: torch.Tensor, *rest: Any) -> Any:
    """The gradient of a convolution, that of its bias by a sum."""
    *others, mask = rest
    if not mask[2]:
        return NotImplemented
    of_bias = aten.sum(grad, [0, *range(2, grad.dim())])
    of_input, of_weight, _ = aten.convolution_backward(grad, *others, [mask[0], mask[1], False])
    return of_input, of_weight, of_bias


def bernoulli(x: torch.Tensor, p: float = 0.5, **_: Any) -> torch.Tensor:
    """Random flags, as stochastic depth draws them."""
    return torch.rand_like(x, dtype=torch.float32) < p
