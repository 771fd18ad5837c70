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
