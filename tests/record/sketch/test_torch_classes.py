"""Packed sequences are sketched with the shapes that their lengths give; lazy modules take their sizes from their first
input, in a sketch as on real tensors."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import rnn

from foretrace.graph import ForetraceError, Graph
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch

LENGTHS = [4, 9, 2]
VIEWS = ("aten::slice", "aten::as_strided", "aten::alias")
"""PyTorch makes views of fake tensors anew after a change in place: no kernel runs for that."""


def padding(network: Any, batch_first: bool, device: str = "cpu") -> Callable[[], Callable[[], None]]:
    """A builder of a step that packs a batch, runs the network, and pads its output."""

    def build() -> Callable[[], None]:
        batch = torch.randn(3, 9, 8, device=device)
        batch = batch if batch_first else batch.transpose(0, 1)

        def step() -> None:
            lengths = torch.tensor(LENGTHS)
            packed = rnn.pack_padded_sequence(batch, lengths, batch_first, enforce_sorted=False)
            output, found = rnn.pad_packed_sequence(network(packed)[0], batch_first, total_length=10)
            assert found.tolist() == LENGTHS and output.shape[1 - (not batch_first)] == 10
            output.sum().backward()

        return step

    return build


def called(graph: Graph) -> Counter[Any]:
    """How often each op is called, with the shapes that it makes."""
    return Counter((op.name, *(t.shape for t in op.produced)) for op in graph.ops if op.name not in VIEWS)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_sketch_of_packed_sequences_equals_a_recording(kind: Any, batch_first: bool) -> None:
    network = kind(8, 16, num_layers=2, batch_first=batch_first, bidirectional=True)
    build = padding(network, batch_first)
    step, watch = build(), Watch()
    step()
    with watch:
        step()
    assert called(sketch(build)) == called(watch.graph())


def test_cudnn_gets_the_sizes_of_the_batch_at_each_step() -> None:
    graph = sketch(lambda: padding(nn.LSTM(8, 16, batch_first=True).cuda(), True, "cuda")(), "cuda")
    (call,) = [op for op in graph.ops if op.name == "aten::_cudnn_rnn"]
    assert [3, 3, 2, 2, 1, 1, 1, 1, 1] in list(call.args)


def test_lengths_that_are_unknown_are_refused() -> None:
    def step() -> None:
        rnn.pack_padded_sequence(torch.randn(3, 9, 8), torch.randn(3).abs().ceil().long(), enforce_sorted=False)

    with pytest.raises(ForetraceError, match="_pack_padded_sequence"):
        sketch(step)


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
