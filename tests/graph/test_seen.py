"""What calls took when they were recorded."""

from __future__ import annotations

import numpy as np
import pytest

import foretrace as ft
from foretrace.graph import Graph, KernelTable, Names, Op, OpTable, Tensor
from foretrace.graph.seen import seen_calls
from foretrace.graph.signature import signature
from foretrace.graph.tables import COMPUTE
from foretrace.transforms.parallel.data import data_parallel

W, X, Y, G = (Tensor((512, 512), "float32", "cuda:0", id=n, storage=n) for n in range(4))
PRODUCT_US = (4000.0, 6000.0)
"""Far more than any model says."""


@pytest.fixture
def recorded() -> Graph:
    """A product, its gradient and an update, recorded on an H200."""
    ops = [
        Op("aten::mm", (X, W), outputs=(Y,), overload="default", phase="forward", start_us=0.0, end_us=5.0),
        Op("aten::mm", (X, Y), outputs=(G,), overload="default", phase="backward", start_us=5.0, end_us=10.0),
        Op("aten::add_", (W, G), outputs=(W,), overload="Tensor", phase="optimizer", start_us=10.0, end_us=15.0),
    ]
    rows, nothing = np.arange(3, dtype=np.int32), np.zeros(3, np.int64)
    start = np.array([10.0, 5000.0, 12000.0])
    kernels = KernelTable(
        name=np.array([0, 0, 1], np.int32), start=start, end=start + np.array([*PRODUCT_US, 3.0]),
        stream=np.full(3, 7, np.int32), kind=np.full(3, COMPUTE, np.int8), call=rows, op=rows,
        nbytes=nothing, grid=nothing, block=nothing, names=Names(["gemm", "add"]),
    )  # fmt: skip
    return Graph(OpTable.of(ops), kernels=kernels, device="NVIDIA H200")


def test_equal_calls_are_seen_at_their_median(recorded: Graph) -> None:
    seen = seen_calls(recorded)
    assert seen[signature(recorded.ops[0])] == (("gemm", 5000.0),)
    assert seen[signature(recorded.ops[2])] == (("add", 3.0),)


def test_a_graph_without_kernels_has_seen_nothing(recorded: Graph) -> None:
    assert seen_calls(Graph(recorded.ops)) == {}


def test_what_an_edit_leaves_as_it_was_takes_what_was_recorded(recorded: Graph) -> None:
    forecast = ft.predict(data_parallel(recorded, 2), on="h200", fabric="h100-8x")
    assert forecast.device_active_ms == pytest.approx(10.0, rel=0.05)
    assert 0.9 < forecast.coverage["measured"] < 1.0, "the sums of gradients are new"
    assert any("still as they were recorded" in note for note in forecast.notes)


def test_where_models_are_asked_for_they_answer(recorded: Graph) -> None:
    forecast = ft.predict(data_parallel(recorded, 2), on="h200", fabric="h100-8x", kernels="model")
    assert forecast.device_active_ms < 1.0 and forecast.coverage["measured"] == 0.0


def test_on_another_device_models_answer(recorded: Graph) -> None:
    recorded.device = "NVIDIA A100-SXM4-80GB"
    assert ft.predict(data_parallel(recorded, 2), on="h200", fabric="h100-8x").coverage["measured"] == 0.0
