"""Replays on a GPU: the same kernels, on the same streams, in the same order."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretrace.graph import Job
from foretrace.record.watch.session import record_step
from foretrace.replay.generate.choices import Choices, Selection

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """What earlier steps left of cuBLAS is no part of the next one's memory."""
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()


def layers(device: str = "cuda") -> Callable[[], None]:
    """A few layers in bf16, with attention and AdamW."""
    model = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).to(device)
    update = torch.optim.AdamW(model.parameters(), lr=1e-3)
    given = torch.randn(8, 32, 64, device=device)

    def step() -> None:
        update.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            model(given).square().mean().backward()
        update.step()

    return step


def on_two_streams() -> Callable[[], None]:
    """A product on a second stream, which waits for the first one and is waited for."""
    side = torch.cuda.Stream()
    a = torch.randn(512, 512, device="cuda")
    parameter = torch.nn.Parameter(torch.randn(512, 512, device="cuda"))
    update = torch.optim.SGD([parameter], lr=1e-6)

    def step() -> None:
        update.zero_grad()
        doubled = a * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product = doubled @ a
            product.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)
        (product * parameter).sum().backward()
        update.step()

    return step


def recorded(step: Callable[[], None], folder: Path) -> Any:
    job = record_step(step, folder, warmup=3, plain=5, profile=1)
    from foretrace.api import load

    loaded = load(folder)
    assert job is not None
    return loaded.graphs[0] if isinstance(loaded, Job) else loaded


@pytest.mark.parametrize("make", [layers, on_two_streams])
def test_a_replay_launches_the_originals_kernels(
    make: Callable[[], Callable[[], None]], tmp_path: Path, loaded: Callable[..., Any]
) -> None:
    graph = recorded(make(), tmp_path / "recording")
    benchmark = loaded(graph)
    assert benchmark.source.failures == [] and benchmark.source.stand_ins == []
    result = importlib.import_module("harness.measure").measure_benchmark(benchmark, 5, paced=True)
    run = importlib.import_module("harness.report").merge_ranks([result])
    assert run["coverage"] == {"calls": 1.0, "host": 1.0, "device": 1.0}
    assert run["kernels"]["missing"] == [] and run["kernels"]["extra"] == []
    assert run["launches"] == run["original"]["launches"]
    assert run["peak_memory_bytes"] == pytest.approx(run["original"]["peak_memory_bytes"], rel=0.02)


def test_work_goes_to_the_streams_it_was_recorded_on(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    graph = recorded(on_two_streams(), tmp_path / "recording")
    benchmark = loaded(graph)
    step = benchmark.step(paced=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    trace = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(trace))
    import json

    events = json.loads(trace.read_text())["traceEvents"]
    streams = {event["args"]["stream"] for event in events if event.get("cat") == "kernel"}
    assert len(streams) == 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_a_stand_in_takes_the_time_of_the_call_on_the_device(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    graph = recorded(layers(), tmp_path / "recording")
    benchmark = loaded(graph)
    host = importlib.import_module("harness.host")
    benchmark.facts["calls"][0].update(device_us=2000.0, makes=[])
    measure = importlib.import_module("harness.measure")
    kernels = measure.kernels_of(lambda: host.stand_in(0))
    assert sum(us for _, us in kernels) == pytest.approx(2000.0, rel=0.2)


def test_a_part_of_a_step_runs_alone(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    graph = recorded(layers(), tmp_path / "recording")
    benchmark = loaded(graph, Choices(Selection(phase="backward")))
    assert benchmark.source.failures == []


def test_a_recording_from_the_gpu_runs_on_the_cpu(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    graph = recorded(layers(), tmp_path / "recording")
    benchmark = loaded(graph, device="cpu")
    assert benchmark.source.failures == []


def test_a_recording_from_the_cpu_runs_on_the_gpu(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    graph = recorded(layers("cpu"), tmp_path / "recording")
    benchmark = loaded(graph, device="cuda")
    assert benchmark.source.failures == []
    assert any("attention" in name for name in benchmark.source.translated.values())
    assert all(tensor.is_cuda for tensor in benchmark.inputs if tensor.dim())


def test_counters_of_the_gpu_are_reported(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    benchmark = loaded(recorded(layers(), tmp_path / "recording"))
    system = importlib.import_module("harness.system")
    (found,) = system.counters([str(benchmark.folder / "run.py"), "--counted"])
    if "error" in found:
        pytest.skip(found["error"])
    assert found["kernels"] > 10 and set(system.METRICS) <= set(found)
    assert 0 < found["occupancy"] <= 100 and 0 < found["l2_hit"] <= 100


def test_power_and_clock_are_reported(loaded: Callable[..., Any], tmp_path: Path) -> None:
    graph = recorded(layers(), tmp_path / "recording")
    benchmark = loaded(graph)
    system = importlib.import_module("harness.system")
    measure = importlib.import_module("harness.measure")
    found = system.power_and_clock(benchmark.step(paced=False), measure.synchronize)
    assert found["power_w"] > 20 and found["clock_mhz"] > 200
