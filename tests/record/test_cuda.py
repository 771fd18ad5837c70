"""What only a GPU can show: streams, graphs, compiled kernels, and that watching adds no kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foretrace.graph import Constant
from foretrace.record.recording import load_recording
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.session import record_step
from foretrace.record.watch.watch import Watch
from tests.narrowing import instance

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def small_step(compiled: bool = False):
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    run = torch.compile(model) if compiled else model
    given = torch.randn(32, 64, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        run(given).square().mean().backward()
        optimizer.step()

    return step


def test_each_kernel_belongs_to_a_call(tmp_path: Path) -> None:
    graph = load_recording(record_step(small_step(), tmp_path / "r", plain=2, profile=2)).graphs[0]
    assert len(graph.kernels) > 10
    assert (graph.kernels.op >= 0).all()
    assert graph.device == torch.cuda.get_device_name()


def test_waits_between_streams_are_seen() -> None:
    side = torch.cuda.Stream()
    a = torch.randn(256, 256, device="cuda")
    with Watch() as watch:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a @ a
        torch.cuda.current_stream().wait_stream(side)
        b.sum()
    names = [op.name for op in watch.ops]
    waits = ["cuda::event_record", "cuda::stream_wait_event"]
    assert names == [*waits, "aten::mm", *waits, "aten::sum"]
    product, total = watch.ops[2], watch.ops[5]
    assert product.stream != total.stream == 0
    assert instance(Constant, watch.ops[1].args[0]).value == str(product.stream)


def test_reading_a_value_and_waiting_for_the_device_are_seen() -> None:
    a = torch.ones(4, device="cuda")
    with Watch() as watch:
        a.sum().item()
        torch.cuda.synchronize()
    assert [op.name for op in watch.ops][-2:] == ["aten::_local_scalar_dense", "cuda::device_synchronize"]


def test_compiled_kernels_are_ops_of_their_own(tmp_path: Path) -> None:
    folder = record_step(small_step(compiled=True), tmp_path / "r", plain=2, profile=2)
    graph = load_recording(folder).graphs[0]
    names = [op.name for op in graph.ops]
    fused = [row for row, name in enumerate(names) if name.startswith("triton_")]
    assert fused, names
    owned = np.isin(graph.kernels.op, fused)
    assert owned.any() and (graph.kernels.grid[owned] > 0).all()
    assert any(graph.ops[row].tensors for row in fused), "tensors come from the execution trace"
    assert (folder / "rank-0" / "et.json.gz").exists()


def test_a_sketch_is_the_recording_of_the_same_step(tmp_path: Path) -> None:
    graph = load_recording(record_step(small_step(), tmp_path / "r", plain=2, profile=2)).graphs[0]
    sketched = sketch(small_step, device="cuda")
    reported = [(op.name, [t.shape for t in op.tensors]) for op in graph.ops]
    assert reported == [(op.name, [t.shape for t in op.tensors]) for op in sketched.ops]


def test_a_captured_graph_launches_many_kernels_at_once(tmp_path: Path) -> None:
    step = small_step()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    model = torch.nn.Linear(64, 64).cuda()
    given = torch.randn(32, 64, device="cuda")
    with torch.cuda.stream(side):
        for _ in range(3):
            model(given).relu().sum()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        model(given).relu().sum()

    def replay() -> None:
        captured.replay()
        step()

    graph = load_recording(record_step(replay, tmp_path / "r", plain=2, profile=2)).graphs[0]
    calls, launched = np.unique(graph.kernels.call[graph.kernels.call >= 0], return_counts=True)
    assert launched.max() >= 3
    assert "Graph" in graph.calls.names[graph.calls.name[calls[launched.argmax()]]]
