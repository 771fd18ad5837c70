"""Fused chains of element-wise ops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import gpt
from foretrace.analysis.memory import peak_memory
from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.fusion.elementwise import fuse_elementwise
from tests.narrowing import present
from tests.transforms.agreement import sketched


def step_of(compute: Callable[[torch.Tensor, torch.Tensor], object]) -> Graph:
    """What is computed of a matrix and a vector."""

    def build() -> Callable[[], object]:
        x, w = torch.randn(64, 32, device="cuda"), torch.randn(32, device="cuda")
        return lambda: compute(x, w)

    return sketch(build, device="cuda")


def test_a_chain_reads_and_writes_once() -> None:
    kernel, total = fuse_elementwise(step_of(lambda x, w: ((x * w).relu() + x).sum())).ops
    assert (kernel.name, total.name) == ("triton_poi_fused_mul_relu_add_0", "aten::sum")
    assert [tensor.shape for tensor in kernel.tensors] == [(64, 32), (32,), (64, 32)]
    assert [tensor.id for tensor in kernel.produced] == [total.tensors[0].id]


def test_what_others_need_is_written_too() -> None:
    def compute(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scaled = x * w
        return scaled.relu() @ (scaled @ w)[:32]

    kernel = fuse_elementwise(step_of(compute)).ops[0]
    assert kernel.name == "triton_poi_fused_mul_relu_0" and len(kernel.produced) == 2


def test_a_product_ends_a_chain() -> None:
    names = [op.name for op in fuse_elementwise(step_of(lambda x, w: ((x * w).relu() @ w).neg().exp())).ops]
    assert names == ["triton_poi_fused_mul_relu_0", "aten::mv", "triton_poi_fused_neg_exp_1"]


def test_memory_of_what_stays_inside_is_not_taken() -> None:
    step = step_of(lambda x, w: ((x * w).relu() + x).sum())
    assert present(peak_memory(fuse_elementwise(step))) < present(peak_memory(step))


def test_a_step_without_chains_says_so() -> None:
    with pytest.raises(ForetraceError, match="no two consecutive element-wise calls"):
        fuse_elementwise(sketched(gpt))
