"""Linear layers in float8 with one scale a tensor, found as they go, for the programs beside this file.

As torchao's tensorwise recipe once it is compiled: the largest element of input, weight and gradient gives the scale,
found in one pass; layers of the same input share its cast; all three GEMMs of a layer are in float8, with gradients in
e5m2. Input and weights are saved as they came, and cast again in the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def cast(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A matrix in float8, row by row, and what its elements are to be multiplied with."""
    largest = torch.finfo(dtype).max
    scale = largest / torch.linalg.vector_norm(x, torch.inf).float().clamp(min=1e-12)
    made = (x.float() * scale).clamp(-largest, largest).to(dtype, memory_format=torch.contiguous_format)
    return made, scale.reciprocal()


def cast_by_columns(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same column by column, as the second operand of a float8 GEMM must lie."""
    made, scale = cast(x.t(), dtype)
    return made.t(), scale


class Float8Products(torch.autograd.Function):
    """``x @ weight.T`` for each weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        left, of_left = cast(x, FORWARD)
        made = []
        for weight in weights:
            right, of_right = cast(weight, FORWARD)
            made.append(torch._scaled_mm(left, right.t(), of_left, of_right, out_dtype=x.dtype, use_fast_accum=True))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        columns, of_left = cast_by_columns(x, FORWARD)
        of_x: Tensor | None = None
        of_weights = []
        for weight, gradient in zip(weights, gradients):
            (grad, of_grad), (right, of_right) = cast(gradient, BACKWARD), cast_by_columns(weight, FORWARD)
            part = torch._scaled_mm(grad, right, of_grad, of_right, out_dtype=x.dtype)
            of_x = part if of_x is None else of_x + part
            rows = grad.t().contiguous()
            of_weights.append(torch._scaled_mm(rows, columns, of_grad, of_left, out_dtype=x.dtype))
        assert of_x is not None
        return of_x, *of_weights


def linears(x: Tensor, layers: Sequence[nn.Linear], float8: bool) -> list[Tensor]:
    """What layers without bias make of the same input."""
    if not float8:
        return [layer(x) for layer in layers]
    made = Float8Products.apply(x.flatten(0, -2), *(layer.weight for layer in layers))
    return [each.unflatten(0, x.shape[:-1]) for each in made]
