"""Calls of compiled steps are taken apart as on a GPU, and their tensors lie in memory as there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from foretrace.graph import Graph
from foretrace.record.sketch.compiled.inductor import pays_to_pad
from foretrace.record.sketch.sketch import sketch

pytestmark = pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch.compile is sketched from 2.6")


class Blocks(nn.Module):
    """A convolution whose result is normalized by groups, or by channels that come last."""

    def __init__(self, groups: bool) -> None:
        super().__init__()
        self.groups = groups
        self.convolution, self.linear = nn.Conv2d(8, 16, 3, padding=1), nn.Linear(16, 32)
        self.norm = nn.GroupNorm(4, 16) if groups else nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.convolution(x)
        found = self.norm(found) if self.groups else self.linear(self.norm(found.permute(0, 2, 3, 1)))
        return found.square().mean()


def sketched(groups: bool, dtype: torch.dtype = torch.float32) -> Graph:
    def make() -> Any:
        model = Blocks(groups).to("cuda", dtype=dtype, memory_format=torch.channels_last)
        x = torch.randn(4, 8, 14, 14, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)
        optimizer, run = torch.optim.SGD(model.parameters(), lr=0.1), torch.compile(model)

        def step() -> None:
            run(x).backward()
            optimizer.step()

        return step

    return sketch(make, device="cuda")


def test_a_convolution_keeps_channels_last_so_that_what_follows_can_view_it() -> None:
    graph = sketched(groups=False)
    assert graph.notes == [] and any(op.name.startswith("triton_") for op in graph.ops)


def test_group_norm_copies_channels_that_come_last() -> None:
    assert any("clone_native_group_norm" in op.name for op in sketched(groups=True).ops)


def test_statistics_of_half_precision_are_in_float32() -> None:
    graph = sketched(groups=False, dtype=torch.bfloat16)
    norm = next(op for op in graph.ops if "native_layer_norm" in op.name)
    assert {t.dtype for t in norm.tensors if t.shape == (4, 14, 14, 1)} == {"float32"}


def test_the_gradient_of_a_convolutions_bias_is_a_sum() -> None:
    assert any("convolution_backward" in op.name and op.name.startswith("triton_") for op in sketched(True).ops)


def test_random_flags_are_drawn_in_a_kernel() -> None:
    def make() -> Any:
        model, x = nn.Linear(64, 64).to("cuda"), torch.randn(32, 64, device="cuda")

        def forward() -> torch.Tensor:
            return (model(x) * torch.empty(32, 1, device="cuda").bernoulli_(0.8)).square().mean()

        run, optimizer = torch.compile(forward), torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            run().backward()
            optimizer.step()

        return step

    assert sketch(make, device="cuda").notes == []


@pytest.mark.parametrize(
    ("rows", "inner", "columns", "dtype", "pays"),
    [(16384, 768, 50257, torch.bfloat16, True), (16384, 196, 256, torch.bfloat16, False),
     (512, 768, 50257, torch.float32, False), (4096, 4096, 4096, torch.bfloat16, False)],
)  # fmt: skip
def test_padding_pays_for_large_products_on_tensor_cores(
    rows: int, inner: int, columns: int, dtype: torch.dtype, pays: bool
) -> None:
    one, other = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((rows, inner), (inner, columns)))
    assert pays_to_pad(None, one, other) == pays
