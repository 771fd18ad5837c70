"""Lazy modules take their sizes from their first input, in a sketch as well."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch


def built(device: str, prepare: Callable[[nn.Sequential], nn.Module]) -> Callable[[], Any]:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    prepared = prepare(model).to(device)
    x = torch.ones(2, 3, 8, 8, device=device)
    with torch.no_grad():
        prepared(x)
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        prepared(x).sum().backward()
        optimizer.step()

    return step


def copied(model: nn.Sequential) -> nn.Module:
    """With copies of the modules that PyTorch can copy: it refuses buffers without a size."""
    return nn.Sequential(*(m if isinstance(m, nn.LazyBatchNorm2d) else copy.deepcopy(m) for m in model))


WAYS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "as it is": lambda model: model,
    "copied": copied,
    "in evaluation": lambda model: model.eval(),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("name", WAYS)
def test_lazy_modules_have_the_sizes_of_real_ones(name: str) -> None:
    step = built("cpu", WAYS[name])
    step()
    with Watch() as watch:
        step()
    real = [(op.name, [t.shape for t in op.tensors]) for op in watch.ops]
    assert [(op.name, [t.shape for t in op.tensors]) for op in sketch(lambda: built("cpu", WAYS[name])).ops] == real
    graph = sketch(lambda: built("cuda", WAYS[name]), device="cuda")
    weights = {t.shape for op in graph.ops for t in op.tensors if t.device == "cuda:0"}
    assert {(8, 3, 3, 3), (8,), (5, 288)} <= weights
    assert type(UninitializedParameter()) is UninitializedParameter, "as before the sketch"
