"""Kernels that no model knows."""

from typing import Any

import pytest

import foretrace as ft
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.roofline import FALLBACK, MODEL
from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, OpTable
from foretrace.graph.tables import NODE
from foretrace.platform.device import Device
from foretrace.prediction.device_work import device_work
from tests.analysis.builders import Call, launch, rank, recorded

START_US = 1.0
"""Of a kernel, on the platform of these tests."""


def fused(device: str = "another") -> Graph:
    """A product, then an autograd function that launches a kernel of its own: no call is around it."""
    graph = rank(
        Call("aten::mm", 0, 10), launch(1, 2, (5, 25)),
        Call("FusedNorm", 20, 30, kind=NODE), Call("aten::empty", 21, 22), launch(24, 25, (31, 42), name="fusedNorm"),
    )  # fmt: skip
    graph.device = device
    return graph


def test_a_kernel_that_was_launched_in_no_call_takes_what_it_took(platform: Any) -> None:
    work, (said,) = device_work(dispatched_calls(fused()), platform)
    assert work.source.tolist() == [MODEL, FALLBACK] and work.typical[1] == 11.0
    assert work.low[1] < 11.0 < work.high[1]
    assert said == "0.01 ms are kernels as they were recorded on another: no model knows what launched them (fusedNorm)"


def test_its_work_goes_by_the_memory_of_both_devices_and_its_start_stays(platform: Any) -> None:
    ratio = Device.named("v100").memory_gbps / platform.device.memory_gbps
    work, (said,) = device_work(dispatched_calls(fused("Tesla V100-SXM2-32GB")), platform)
    assert work.typical[1] == pytest.approx(START_US + 10.0 * ratio)
    assert "at the rates of by hand" in said


def test_behind_a_call_that_models_know_it_counts_too(platform: Any) -> None:
    graph = rank(
        Call("FusedNorm", 0, 30, kind=NODE), Call("aten::mm", 1, 10), launch(2, 3, (5, 25)), launch(24, 25, (31, 42))
    )
    graph.device = "another"
    step = dispatched_calls(graph)
    work, _ = device_work(step, platform)
    assert [step.calls.ops[call].name for call in work.call.tolist()] == ["aten::mm", "FusedNorm"]
    assert work.typical.tolist() == [10.0, 11.0]


def test_a_guess_from_tensors_makes_way_for_what_was_recorded(platform: Any) -> None:
    graph = rank(Call("mine::strange", 0, 10), launch(1, 2, (5, 25)))
    graph.device = "another"
    work, _ = device_work(dispatched_calls(graph), platform)
    assert work.typical.tolist() == [20.0]


def test_models_alone_leave_them_out_and_say_so(platform: Any) -> None:
    work, (said,) = device_work(dispatched_calls(fused()), platform, "model")
    assert len(work) == 1 and said.startswith("some 40 % of what kernels took where they were recorded is left out")


def test_few_of_them_are_not_worth_a_word(platform: Any) -> None:
    _, said = device_work(dispatched_calls(recorded("another")), platform, "model")
    assert not said


def test_a_step_of_collectives_alone_is_priced_by_their_sizes() -> None:
    """ASTRA-sim's microbenchmarks: no tensors, kinds and sizes only."""

    def job(nbytes: int) -> Job:
        reduce = Collective("all_reduce", "", nbytes, kernel=-1, op=0)
        return Job([
            Graph(OpTable.of([Op("c10d::all_reduce")]), rank=rank, world=8, collectives=[reduce]) for rank in range(8)
        ])  # fmt: skip

    small, large = (ft.predict(job(nbytes), on="h100").device_active_ms for nbytes in (1 << 20, 1 << 28))
    assert 0.01 < small < 0.1 and 20 * small < large < 256 * small
    with pytest.raises(ForetraceError, match="has no shapes of tensors"):
        ft.predict(Graph(OpTable.of([Op("aten::mm")])), on="h100")
