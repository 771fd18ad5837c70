"""From a graph and a platform to a forecast."""

from typing import Any

import numpy as np
import pytest

from foretrace.formats.perfetto import write_perfetto
from foretrace.graph import CallTable, ForetraceError, Graph, Job, Op, OpTable, Span, Storage, Tensor, Timings
from foretrace.platform.platform import Platform
from foretrace.prediction.predict import predict_on_own_machine, predict_on_platform
from foretrace.report.step import step_facts
from tests.analysis import builders
from tests.narrowing import present
from tests.prediction.by_hand import device

LOSS = Tensor((), "float32", "cuda:0")


def sketched(*ops: Op, **more: Any) -> Graph:
    return Graph(OpTable.of(ops), source="train.py", **more)


def test_a_host_bound_step_takes_what_the_host_takes_and_the_last_kernel(platform: Any) -> None:
    forecast = predict_on_platform(sketched(Op("aten::view"), Op("aten::mm")), platform)
    # Two calls: 1 + 2 + 1 and 1 + 2 + 3; then latency and kernel.
    assert forecast.step_ms == pytest.approx((4 + 6 + 2 + 10) / 1e3)
    assert forecast.device_active_ms == pytest.approx(0.010)
    assert forecast.device_idle_ms == pytest.approx(0.012)
    assert sum(forecast.idle_causes.values()) == pytest.approx(forecast.device_idle_ms)
    assert forecast.coverage == {"measured": 0.0, "model": 1.0, "extrapolated": 0.0, "fallback": 0.0}


def test_a_device_bound_step_repeats_as_fast_as_the_device_can(platform: Any) -> None:
    platform.device = device(gap=5.0)
    forecast = predict_on_platform(sketched(*[Op("aten::mm")] * 10), platform)
    assert forecast.step_ms_back_to_back == pytest.approx(10 * 15.0 / 1e3)
    assert forecast.step_ms > present(forecast.step_ms_back_to_back)


def test_a_host_bound_step_repeats_as_fast_as_the_host_can(platform: Any) -> None:
    forecast = predict_on_platform(sketched(*[Op("aten::view")] * 10, Op("aten::mm")), platform)
    assert forecast.step_ms_back_to_back == pytest.approx((10 * 4 + 7) / 1e3)


def test_a_value_read_in_the_middle_keeps_the_host_from_running_ahead(platform: Any) -> None:
    ops = [*[Op("aten::mm")] * 20, Op("aten::_local_scalar_dense", (LOSS,))]
    held = predict_on_platform(sketched(*ops, *ops), platform)
    free = predict_on_platform(
        sketched(*[op for op in [*ops, *ops] if op.name == "aten::mm"], Op("aten::view")), platform
    )
    assert held.step_ms > free.step_ms
    assert "sync" in {part.what for part in held.critical_path}


def test_the_range_is_around_the_step(platform: Any) -> None:
    forecast = predict_on_platform(sketched(*[Op("aten::mm")] * 50), platform)
    assert forecast.low_ms < forecast.step_ms < forecast.high_ms


def test_the_critical_path_adds_up_to_the_step(platform: Any) -> None:
    forecast = predict_on_platform(sketched(*[Op("aten::mm"), Op("aten::view")] * 20), platform)
    assert sum(part.ms for part in forecast.critical_path) == pytest.approx(forecast.step_ms, rel=1e-6)
    assert {"T1", "T2", "T4"} <= {part.what for part in forecast.critical_path}


def test_time_by_op_holds_host_and_device_time(platform: Any) -> None:
    forecast = predict_on_platform(sketched(Op("aten::mm"), Op("aten::mm"), Op("aten::view")), platform)
    rows = {row.name: row for row in forecast.by_op}
    assert rows["aten::mm"].device_ms == pytest.approx(0.02) and rows["aten::mm"].count == 2
    assert forecast.by_family[0].name == "matrix product"
    assert forecast.overheads["T4"].count == 2


def test_an_unknown_op_is_priced_and_said_to_be_by_roofline(platform: Any) -> None:
    forecast = predict_on_platform(sketched(Op("aten::mm"), Op("aten::strange")), platform)
    assert forecast.coverage["fallback"] == 0.5
    assert any("aten::strange" in note for note in forecast.notes)


def test_memory_is_held_against_the_device(platform: Any) -> None:
    fits = predict_on_platform(sketched(Op("aten::mm"), storages={0: Storage(0, 1 << 20, "cuda:0")}), platform)
    workspace = round(platform.device.workspace_mib * 2**20)
    assert fits.fits is True and fits.peak_memory_bytes == (1 << 20) + workspace
    too_large = predict_on_platform(sketched(Op("aten::mm"), storages={0: Storage(0, 1 << 40, "cuda:0")}), platform)
    assert too_large.fits is False
    assert predict_on_platform(sketched(Op("aten::mm")), platform).fits is None


def test_the_predicted_timeline_can_be_written_for_perfetto(platform: Any, tmp_path: Any) -> None:
    forecast = predict_on_platform(sketched(Op("aten::mm"), Op("aten::view")), platform)
    assert forecast.workings is not None and "workings" not in forecast.to_dict()
    write_perfetto(Job(forecast.workings.graphs), tmp_path / "timeline.json")
    assert b"aten::mm kernel" in (tmp_path / "timeline.json").read_bytes()


def test_a_trace_is_predicted_by_its_step_of_median_length(platform: Any) -> None:
    spans = [builders.Span(f"ProfilerStep#{n}", at, at + length) for n, at, length in [(1, 0, 50), (2, 50, 20)]]
    calls = [builders.Call("aten::mm", 1, 10), builders.Call("aten::mm", 20, 30), builders.Call("aten::mm", 51, 60)]
    graph = builders.rank(*calls, steps=spans)
    assert predict_on_platform(graph, platform, "model").kernels == 1
    assert predict_on_platform(graph, platform, "model", step="ProfilerStep#1").kernels == 2
    with pytest.raises(ForetraceError, match="has no step ProfilerStep#9"):
        predict_on_platform(graph, platform, step="ProfilerStep#9")


def test_one_rank_of_several_is_said_to_be_predicted_alone(platform: Any) -> None:
    forecast = predict_on_platform(sketched(Op("aten::mm"), world=8, rank=3), platform)
    assert forecast.world == 8 and any("rank 3 of 8 is predicted alone" in note for note in forecast.notes)


def test_a_graph_without_calls_is_refused(platform: Any) -> None:
    with pytest.raises(ForetraceError, match="holds no calls"):
        predict_on_platform(Graph(OpTable.of([])), platform)
    with pytest.raises(ForetraceError, match="holds no rank"):
        predict_on_platform(Job([]), platform)


def test_a_trace_that_tells_no_shapes_is_refused_with_what_to_do(platform: Any) -> None:
    with pytest.raises(ForetraceError, match="has no shapes of tensors") as refused:
        predict_on_platform(sketched(Op("aten::view")), platform)
    assert "record_shapes=True" in refused.value.advice


def test_a_step_that_lies_on_the_host_is_refused_on_a_gpu_with_what_to_do() -> None:
    on_host = Tensor((4, 4), "float32", device="cpu")
    with pytest.raises(ForetraceError, match="all its tensors lie on the host") as refused:
        predict_on_platform(sketched(Op("aten::mm", (on_host, on_host), outputs=(on_host,))), Platform.named("h200"))
    assert "on cuda" in refused.value.advice


def test_arithmetic_and_bytes_are_held_against_the_device(platform: Any) -> None:
    square = Tensor((1000, 1000), "float32", "cuda:0")
    forecast = predict_on_platform(sketched(Op("aten::mm", (square, square), outputs=(square,))), platform)
    assert forecast.tflops == pytest.approx(2e-3)
    assert forecast.tflops_per_second == pytest.approx(2e-3 / (forecast.step_ms / 1e3))
    assert forecast.mfu == pytest.approx(2e-3 / (forecast.step_ms / 1e3) / 1.0)  # the peak is 1 TFLOP/s
    assert forecast.gbps == pytest.approx(12e-3 / (forecast.device_active_ms / 1e3))


def test_no_rates_are_given_where_most_of_the_work_is_unknown(platform: Any) -> None:
    square = Tensor((1000, 1000), "float32", "cuda:0")
    known = Op("aten::mm", (square, square), outputs=(square,))
    forecast = predict_on_platform(sketched(known, *[Op("aten::mm")] * 9), platform)
    assert forecast.mfu is None and forecast.tflops is None and forecast.power_w is None


def test_a_step_on_the_cpu_runs_its_kernels_on_the_host(platform: Any) -> None:
    platform.device = device(kind="cpu")
    forecast = predict_on_platform(sketched(*[Op("aten::mm")] * 4), platform)
    assert forecast.step_ms == pytest.approx(4 * (7 + 10) / 1e3)
    assert forecast.device_active_ms == pytest.approx(0.04)


def test_a_step_without_kernels_is_all_host(platform: Any) -> None:
    forecast = predict_on_platform(sketched(*[Op("aten::view", (LOSS,))] * 4), platform)
    assert forecast.step_ms == pytest.approx(0.016) and forecast.kernels == 0
    assert np.isclose(forecast.device_idle_ms, forecast.step_ms)
    assert any("launches nothing on" in note for note in forecast.notes)


def test_the_headline_says_that_the_answer_rests_on_calls_that_no_model_knows() -> None:
    large = Tensor((8192, 8192), "float32", "cuda:0")
    known, unheard = Op("aten::mm", (large, large), outputs=(large,)), Op("aten::unheard_of", (large,) * 40)
    h200 = Platform.named("h200")
    assert not predict_on_platform(sketched(known), h200).cautions
    (caution,) = predict_on_platform(sketched(known, *[unheard] * 4), h200).cautions
    assert caution.startswith("much rests on guesses: ")


def test_what_may_be_the_profiler_s_of_a_step_on_its_own_machine_is_said_unless_unprofiled_ones_were_timed() -> None:
    call, kernel = builders.Call("aten::mm", 0.0, 300.0), builders.launch(90.0, 100.0, (200.0, 250.0))
    graph = builders.rank(call, kernel, steps=[Span("ProfilerStep#3", 0.0, 300.0)])
    traced = predict_on_own_machine(Job([graph]))
    assert present(traced.profiling_ms) == pytest.approx(0.250)
    assert [about for word, _, about in step_facts(traced) if word == "profiled"] == [
        "of it may be the profiler's: the profiled step is what is predicted; without one it takes 0.050 ms or more"
    ]
    graph.unprofiled = Timings(synced_ms=(0.2,))
    assert predict_on_own_machine(Job([graph])).profiling_ms is None


def test_on_its_own_machine_a_step_takes_what_its_mark_says_where_little_of_the_host_is_recorded() -> None:
    graph = builders.rank(
        builders.Call("PjitFunction(train_step)", 0.0, 400.0),
        builders.Orphan(500.0, 4_000.0),
        builders.Call("PjitFunction(train_step)", 5_000.0, 5_400.0),
        builders.Orphan(5_500.0, 9_000.0),
        steps=[Span("train 0", 0.0, 5_000.0), Span("train 1", 5_000.0, 10_000.0)],
    )
    graph.calls, graph.kernels.call[:] = CallTable.empty(), -1
    forecast = predict_on_own_machine(Job([graph]))
    assert forecast.step_ms == present(forecast.step_ms_back_to_back) == pytest.approx(5.0)
    assert forecast.low_ms <= forecast.step_ms <= forecast.high_ms
    assert forecast.device_active_ms == pytest.approx(3.5)
