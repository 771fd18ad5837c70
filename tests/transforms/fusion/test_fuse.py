"""The step as one CUDA graph."""

from __future__ import annotations

import pytest

import dlrm
import foretrace as ft
import gpt
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.platform.device import CudaGraphCosts
from foretrace.transforms.fusion.fuse import cudagraph
from foretrace.transforms.resize.batch_sequence import batch
from tests.narrowing import present
from tests.transforms.agreement import shapes, sketched

FUSED = {"optimizer": "fused"}


def test_a_host_bound_step_becomes_a_device_bound_one() -> None:
    step = sketched(gpt, options=FUSED)
    before, after = (ft.predict(one, on="h200", kernels="model") for one in (step, cudagraph(step)))
    assert before.device_active_ms < 0.2 * before.step_ms
    # From step to step the device does nothing but its kernels, with the gaps of a graph between them.
    gaps = after.kernels * CudaGraphCosts.shipped().gap_us / 1e3
    assert after.device_active_ms < present(after.step_ms_back_to_back) < after.device_active_ms + 1.2 * gaps
    assert any("one CUDA graph; its cost: " in note for note in after.notes)


def test_data_is_copied_to_where_the_graph_reads_it() -> None:
    step = sketched(dlrm)
    made = shapes(cudagraph(step))
    launch = [name for name, *_ in made].index("cuda::graph_launch")
    assert made[launch + 1 :] == shapes(step)
    assert sorted(shape[1] for shape in made[:launch]) == [(128,), (128, 1), (128, 13), *[(512,)] * 4]


def test_a_captured_step_takes_another_batch() -> None:
    assert shapes(batch(cudagraph(sketched(dlrm)), 64)) == shapes(cudagraph(sketched(dlrm, batch=64)))


def test_work_on_the_host_is_refused_with_its_call() -> None:
    with pytest.raises(ForetraceError, match=r"call \d+, aten::_foreach_add_, works on the host.*optimizer=fused"):
        cudagraph(sketched(gpt))


@pytest.mark.parametrize("name", ["aten::_local_scalar_dense", "aten::nonzero", "cuda::device_synchronize"])
def test_a_wait_for_the_device_is_refused_with_its_call(name: str) -> None:
    x = Tensor((4,), "float32", "cuda:0", (1,), id=0, storage=0)
    waits, relu = Op(name, (x,) if "aten" in name else ()), Op("aten::relu_", (x,), outputs=(x,))
    step = Graph(OpTable.of([relu, waits, relu]))
    with pytest.raises(ForetraceError, match=f"call 1, {name}, makes the host wait"):
        cudagraph(step)


def test_a_wait_for_the_whole_step_comes_after_the_graph() -> None:
    x = Tensor((4,), "float32", "cuda:0", (1,), id=0, storage=0)
    step = Graph(OpTable.of([Op("aten::relu_", (x,), outputs=(x,)), Op("cuda::device_synchronize")]))
    assert [op.name for op in cudagraph(step).ops][-3:] == [
        "cuda::graph_launch", "aten::relu_", "cuda::device_synchronize",
    ]  # fmt: skip


def test_a_step_is_captured_once_and_on_a_gpu() -> None:
    with pytest.raises(ForetraceError, match="launches a CUDA graph already"):
        cudagraph(cudagraph(sketched(dlrm)))
    with pytest.raises(ForetraceError, match="does nothing on a GPU"):
        cudagraph(Graph(OpTable.of([Op("aten::relu", (Tensor((4,), "float32", "cpu", id=0, storage=0),))])))
