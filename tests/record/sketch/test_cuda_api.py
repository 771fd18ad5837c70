"""Everyday code that asks for a GPU finds one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foretrace.graph import ForetraceError
from foretrace.record.sketch.cuda_api import gpu_is_visible
from foretrace.record.sketch.sketch import sketch

pytestmark = pytest.mark.skipif(bool(torch.version.cuda), reason="a build with CUDA has its own")

EVERYDAY: dict[str, Callable[[], Any]] = {
    "a device by its number": lambda: torch.ones(2, device=torch.device(0)).to(0).to(device=0).cuda(0),
    "a module by the number": lambda: nn.Linear(2, 2).to(0).weight,
    "a tensor made by number": lambda: torch.ones(2, device=0),
    "a type of tensors": lambda: torch.ones(2).type(torch.cuda.FloatTensor),
    "the name of a type": lambda: torch.ones(2).type("torch.cuda.HalfTensor"),
    "a tensor of a type": lambda: torch.cuda.FloatTensor(2, 3),
    "numbers like a tensor's": lambda: torch.ones(2, device="cuda").new_tensor([1.0, 2.0]),
    "a generator": lambda: torch.randn(2, generator=torch.Generator(device="cuda").manual_seed(1), device="cuda"),
    "the accelerator": lambda: torch.ones(2, device=torch.accelerator.current_accelerator()),
    "a context": lambda: _in(torch.cuda.device(0), lambda: torch.ones(2).cuda()),
    "a default device": lambda: _in(torch.device("cuda"), lambda: nn.Linear(2, 2).weight),
    "a marked range": lambda: _in(torch.cuda.nvtx.range("mine"), lambda: torch.ones(2).cuda()),
    "one GPU's data parallelism": lambda: nn.DataParallel(nn.Linear(2, 2))(torch.ones(4, 2)),
}


def _in(context: Any, make: Callable[[], Any]) -> Any:
    with context:
        return make()


@pytest.mark.parametrize("name", EVERYDAY)
def test_a_tensor_is_on_the_gpu_however_it_came_there(name: str) -> None:
    found = []

    def step() -> None:
        made = EVERYDAY[name]()
        found.append((made.device, made.is_cuda, made.get_device()))

    sketch(step, device="cuda")
    assert found[-1] == (torch.device("cuda:0"), True, 0)


def test_what_is_set_as_the_default_device_ends_with_the_sketch() -> None:
    def build() -> Callable[[], Any]:
        torch.set_default_device("cuda")
        layer = nn.Linear(8, 8)
        return lambda: layer(torch.ones(2, 8)).sum()

    graph = sketch(build, device="cuda")
    assert {t.device for op in graph.ops for t in op.produced} == {"cuda:0"} and not graph.notes
    assert torch.ones(1).device.type == "cpu" and torch.get_default_device().type == "cpu"


def test_functions_of_torch_cuda_answer() -> None:
    def step() -> None:
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info()
        assert (properties.major, properties.minor) == torch.cuda.get_device_capability() == (9, 0)
        assert free == total == properties.total_memory
        assert torch.cuda.memory_reserved() == torch.cuda.max_memory_allocated() == torch.accelerator.memory_allocated()
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        torch.accelerator.synchronize()
        assert torch.get_device_module() is torch.cuda and torch.accelerator.device_count() == 1
        made = torch.ones(2, device="cuda")
        made.record_stream(torch.cuda.Stream())
        assert made.type() == "torch.cuda.FloatTensor"

    sketch(step, device="cuda")


def test_tensors_begin_where_their_storages_do() -> None:
    def step() -> None:
        made, other = torch.ones(4, 4, device="cuda"), torch.ones(4, device="cuda")
        assert made.data_ptr() == made.view(16).data_ptr() != other.data_ptr()
        assert made[1].data_ptr() == made.data_ptr() + 16

    sketch(step, device="cuda")


@pytest.mark.parametrize("move", [lambda x: x.to("cuda", memory_format=torch.channels_last), lambda x: x.cuda()])
def test_a_memory_format_is_kept_on_the_way(move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def step() -> None:
        images = torch.ones(2, 3, 8, 8)
        moved = move(images).to(memory_format=torch.channels_last)
        assert moved.is_contiguous(memory_format=torch.channels_last)

    copies = [op for op in sketch(step, device="cuda").ops if op.name == "aten::_to_copy"]
    assert all(op.produced[0].device == "cuda:0" for op in copies)
    assert copies[-1].produced[0].stride == (192, 1, 24, 3)


def test_a_function_that_a_module_kept_is_the_original_again() -> None:
    kept: list[Callable[[], Any]] = []
    sketch(lambda: kept.append(torch.cuda.is_available) or torch.ones(1), device="cuda")
    assert kept[0]() == torch.cuda.is_available() is False


@pytest.mark.parametrize("place", ["cuda", torch.device("cuda:0"), lambda storage, _: storage, None])
def test_saved_weights_are_loaded_to_any_place(place: Any, tmp_path: Path) -> None:
    torch.save(nn.Linear(8, 8).state_dict(), tmp_path / "weights.pt")

    def build() -> Callable[[], Any]:
        layer = nn.Linear(8, 8).to("cuda")
        layer.load_state_dict(torch.load(tmp_path / "weights.pt", map_location=place))
        return lambda: layer(torch.ones(2, 8, device="cuda"))

    assert {t.device for op in sketch(build, device="cuda").ops for t in op.produced} == {"cuda:0"}


def test_a_profiler_in_the_step_looks_for_no_events_of_cuda(capfd: pytest.CaptureFixture[str]) -> None:
    def step() -> None:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities):
            torch.ones(2, device="cuda")

    sketch(step, device="cuda")
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_modules_that_pytorch_imports_on_a_gpu_do_not_warn_of_missing_triton() -> None:
    sketch(lambda: torch.ones(2, device="cuda"), device="cuda")
    assert not logging.getLogger("torch.utils.flop_counter").isEnabledFor(logging.WARNING)


def test_a_captured_graph_is_refused_with_the_way_out() -> None:
    with pytest.raises(ForetraceError, match="CUDA graph") as raised:
        sketch(lambda: torch.cuda.CUDAGraph(), device="cuda")
    assert "record a real run" in raised.value.advice


def test_a_loader_with_workers_loads_in_the_process() -> None:
    def build() -> Callable[[], Any]:
        data = torch.utils.data.TensorDataset(torch.ones(32, 8))
        batches = iter(torch.utils.data.DataLoader(data, 4, num_workers=2, pin_memory=True))
        return lambda: next(batches)[0].to(0, non_blocking=True)

    (copy,) = [op for op in sketch(build, device="cuda").ops if op.name == "aten::_to_copy"]
    assert copy.tensors[0].shape == (4, 8) and copy.kwargs["non_blocking"] is True


def test_a_thread_may_pin_what_it_loads() -> None:
    def build() -> Callable[[], Any]:
        loaded: list[torch.Tensor] = []
        loading = threading.Thread(target=lambda: loaded.append(torch.from_numpy(np.ones(8)).pin_memory()))
        loading.start()
        loading.join()
        return lambda: loaded[0].to(0, non_blocking=True)

    assert [op.name for op in sketch(build, device="cuda").ops] == ["aten::_to_copy"]


def test_a_build_with_cuda_on_a_machine_without_a_gpu_pretends_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for count, visible in ((0, False), (1, True)):
        monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda count=count: count, raising=False)
        assert gpu_is_visible() is visible
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0, raising=False)

    def build() -> Any:
        model, x = torch.nn.Linear(8, 4).to("cuda"), torch.randn(2, 8, device="cuda")
        return lambda: model(x)

    assert {t.device for op in sketch(build, device="cuda").ops for t in op.produced} == {"cuda:0"}


def test_gradients_may_be_compressed_to_bfloat16_as_nccl_can() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def build() -> Callable[[], Any]:
        torch.distributed.init_process_group("nccl")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to("cuda"))
        model.register_comm_hook(None, bf16_compress_hook)
        return lambda: model(torch.ones(2, 8, device="cuda")).sum().backward()

    (reduced,) = [op for op in sketch(build, device="cuda", world=2).ops if op.name.startswith("c10d::allreduce")]
    assert {tensor.dtype for tensor in reduced.tensors} == {"bfloat16"}
    assert torch.version.cuda is None or torch.cuda.is_available()
