"""Operators of one kind of device, done by another: the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretrace.graph import Graph, Op, OpTable, Tensor, Value
from foretrace.replay.harness import translations


def attention(**options: Any) -> tuple[Any, ...]:
    """Query, key and value, what attention makes of them, and the gradients of its sum of squares."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 8, 16, requires_grad=True) for _ in range(3))
    made = torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)
    made.square().sum().backward()
    given = [t.detach() for t in (query, key, value)]
    return given, made.detach(), [query.grad, key.grad, value.grad]


def close(some: Any, others: Any) -> bool:
    return all(torch.allclose(one, other, atol=1e-4) for one, other in zip(some, others, strict=True))


def test_flash_attention_gives_what_a_gpu_gives() -> None:
    given, made, gradients = attention(is_causal=True)
    out, sums, *rest = translations.flash_attention(*given, 0.0, True, False)
    assert close([out], [made]) and len(rest) == 7
    back = translations.flash_attention_backward(2 * out, *given, out, sums, None, None, 8, 8, 0.0, True, None, None)
    assert close(back, gradients)


def test_efficient_attention_with_a_bias_and_padded_sums() -> None:
    bias = torch.randn(2, 3, 8, 8)
    given, made, gradients = attention(attn_mask=bias)
    out, sums, *rest = translations.efficient_attention(*given, bias, True)
    assert close([out], [made]) and len(rest) == 2
    padded = torch.nn.functional.pad(sums, (0, 24))
    wanted = [True, True, True, True]
    *back, of_bias = translations.efficient_attention_backward(
        2 * out, *given, bias, out, padded, None, None, 0.0, wanted, False
    )
    assert close(back, gradients) and of_bias.shape == bias.shape


def test_cudnn_attention_with_a_dimension_more() -> None:
    given, made, gradients = attention(is_causal=True, scale=0.3)
    out, sums, *rest = translations.cudnn_attention(*given, None, True, 0.1, True, False, scale=0.3)
    assert close([out], [made]) and len(rest) == 7
    more = (None, None, None, None, None, 8, 8, 0.1, True)
    back = translations.cudnn_attention_backward(2 * out, *given, out, sums.unsqueeze(-1), *more, scale=0.3)
    assert close(back, gradients)


def test_a_batch_norm_gives_what_cudnn_gives() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    given = torch.randn(2, 4, 5, 5, requires_grad=True)
    mean, variance = torch.zeros(4), torch.ones(4)
    weight, bias = norm.weight.detach(), norm.bias.detach()
    with torch.no_grad():
        out, saved_mean, saved_var, _ = translations.batch_norm(given, weight, bias, mean, variance, True, 0.1, 1e-5)
    made = norm(given)
    made.square().sum().backward()
    assert close([out, mean, variance], [made, norm.running_mean, norm.running_var])
    statistics = (mean, variance, saved_mean, saved_var)
    back = translations.batch_norm_backward(given.detach(), 2 * out, weight, *statistics, 1e-5, None)
    assert close(back, [given.grad, norm.weight.grad, norm.bias.grad])


def test_every_row_names_a_function_and_an_operator() -> None:
    for rows in translations.SUBSTITUTES.values():
        for target, function in rows.items():
            namespace, name, overload = target.split(".")
            assert getattr(getattr(getattr(torch.ops, namespace), name), overload)
            assert callable(getattr(translations, function))


@pytest.fixture
def normed() -> Graph:
    """A batch norm as a GPU does it, and a call that reads it."""
    given, out = (Tensor((2, 4, 5, 5), "float32", "cuda:0", (100, 25, 5, 1), id=n, storage=n) for n in (0, 1))
    parts = [Tensor((4,), "float32", "cuda:0", (1,), id=n, storage=n) for n in range(2, 8)]
    reserve = Tensor((16,), "uint8", "cuda:0", (1,), id=9, storage=9)
    arguments: tuple[Value, ...] = (given, *parts[:4], True, 0.1, 1e-5)
    norm = Op("aten::cudnn_batch_norm", arguments, outputs=(out, *parts[4:], reserve), overload="default")
    relu = Op("aten::relu", (out,), outputs=(Tensor((2, 4, 5, 5), "float32", id=10, storage=10),), overload="default")
    return Graph(OpTable.of([norm, relu]))


def test_a_step_of_a_gpu_is_translated_on_a_cpu(normed: Graph, loaded: Callable[..., Any]) -> None:
    benchmark = loaded(normed, device="cpu")
    assert benchmark.source.failures == [] and benchmark.called == {0, 1}
    assert benchmark.source.translated == {0: "translations.batch_norm"}
