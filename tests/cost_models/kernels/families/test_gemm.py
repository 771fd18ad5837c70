from __future__ import annotations

import pytest

import foretrace as ft
from foretrace.cost_models.kernels.families import CallContext
from foretrace.cost_models.kernels.families.gemm import Gemm
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.platform.device import Device


def scaled(a: str, b: str) -> Op:
    """A GEMM of 8-bit floats, as the backward of a linear layer has it."""
    scale = Tensor((), "float32", "cuda:0")
    left = Tensor((8192, 4096), a, "cuda:0", (4096, 1), id=0, storage=0)
    right = Tensor((4096, 16384), b, "cuda:0", (1, 4096), id=1, storage=1)
    made = Tensor((8192, 16384), "bfloat16", "cuda:0", (16384, 1), id=2, storage=2)
    return Op("aten::_scaled_mm", (left, right, scale, scale), overload="default", outputs=(made,))


def test_both_8_bit_floats_have_the_same_features() -> None:
    family, context = Gemm(), CallContext(Device.named("h200"))
    gradient, forward = scaled("float8_e5m2", "float8_e4m3fn"), scaled("float8_e4m3fn", "float8_e4m3fn")
    assert family.describe(gradient, context) == family.describe(forward, context)


def test_a_gradient_in_8_bits_costs_what_the_forward_does() -> None:
    steps = [Graph(ops=OpTable.of([scaled(a, "float8_e4m3fn")])) for a in ("float8_e4m3fn", "float8_e5m2")]
    forward, gradient = (ft.predict(step, on="h200") for step in steps)
    assert gradient.device_active_ms == pytest.approx(forward.device_active_ms)
    assert (forward.coverage["model"], gradient.coverage["model"]) == (1.0, 1.0)


@pytest.mark.parametrize("gpu", ["b200", "b300"])
def test_pairs_of_4_bit_floats_take_as_long_as_so_many_8_bit_ones_and_are_a_guess(gpu: str) -> None:
    eight, four = (scaled(dtype, dtype) for dtype in ("float8_e4m3fn", "float4_e2m1fn_x2"))
    known, guess = (ft.predict(Graph(ops=OpTable.of([op])), on=gpu) for op in (eight, four))
    assert guess.device_active_ms == pytest.approx(known.device_active_ms, rel=0.01)
    assert guess.coverage["fallback"] == 1.0 and guess.high_ms > 1.5 * known.high_ms


def experts(rows: int, groups: int, inner: int, width: int) -> Op:
    """One GEMM per expert over the rows routed to it."""
    x, weights = Tensor((rows, inner), "bfloat16", "cuda:0"), Tensor((groups, inner, width), "bfloat16", "cuda:0")
    made = Tensor((rows, width), "bfloat16", "cuda:0")
    ends = Tensor((groups,), "int32", "cuda:0")
    return Op("aten::_grouped_mm", (x, weights, ends), overload="default", outputs=(made,))


@pytest.mark.parametrize("gpu", ["h200", "b200", "l40s"])
def test_experts_take_as_long_as_reading_the_weights_of_all_that_have_rows(gpu: str) -> None:
    report = ft.predict(Graph(ops=OpTable.of([experts(2048, 128, 6144, 1536)])), on=gpu)
    weights_ms = 2 * 128 * 6144 * 1536 / Device.named(gpu).memory_gbps / 1e6
    assert report.device_active_ms is not None
    assert 0.95 * weights_ms < report.device_active_ms < 4 * weights_ms


def test_experts_without_rows_are_not_read() -> None:
    some, all_of_them = (Gemm().least_work(experts(rows, 128, 2048, 1024)) for rows in (8, 8192))
    assert some is not None and all_of_them is not None
    assert some.bytes < all_of_them.bytes / 12


def test_gradients_of_all_experts_weights_are_written() -> None:
    grad, x = Tensor((1024, 4096), "bfloat16", "cuda:0", (1, 1024)), Tensor((4096, 2048), "bfloat16", "cuda:0")
    work = Gemm().least_work(Op("aten::_grouped_mm", (grad, x, Tensor((64,), "int32", "cuda:0")), overload="default"))
    assert work is not None
    assert work.bytes >= 2 * 64 * 1024 * 2048
