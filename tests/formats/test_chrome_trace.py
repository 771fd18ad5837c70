"""Traces of other profilers in Chrome's format."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.formats.load import load_traces
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.graph.tables import COLLECTIVE, COMPUTE, COPY


def read(folder: Path, events: list[dict[str, Any]], **more: Any) -> Graph:
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events, **more}))
    return load_traces(folder / "trace.json").graphs[0]


def named(pid: int, process: str, **threads: str) -> list[dict[str, Any]]:
    def label(what: str, name: str, tid: int = 0) -> dict[str, Any]:
        return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}

    return [label("process_name", process), *(label("thread_name", n, int(t[1:])) for t, n in threads.items())]


def span(pid: Any, tid: Any, name: str, ts: Any, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


def jax_step() -> list[dict[str, Any]]:
    return [
        *named(1, "/device:GPU:0", t11="Stream #11(Compute)", t12="Stream #12(MemcpyH2D)", t90="XLA Modules"),
        *named(1, "/device:GPU:0", t91="XLA Ops"),
        *named(7, "/host:CPU", t3="python"),
        span(7, 3, "train", 0.0, 100.0, step_num="4"),
        span(7, 3, "PjitFunction(step)", 1.0, 50.0),
        span(7, 3, "cuLaunchKernel", 5.0, 2.0, correlation_id="88"),
        span(7, 3, "cuLaunchKernel", 8.0, 2.0, correlation_id="89"),
        span(1, 11, "gemm_fusion_dot_12", 20.0, 30.0, correlation_id="88"),
        span(1, 11, "all-reduce-start.2", 50.0, 10.0, correlation_id="89"),
        span(1, 12, "MemcpyH2D", 10.0, 5.0),
        span(1, 90, "jit_step", 10.0, 60.0),
        span(1, 91, "dot.12", 20.0, 30.0),
    ]  # fmt: skip


def test_a_jax_trace_shows_what_its_streams_do(tmp_path: Path):
    graph = read(tmp_path, jax_step(), displayTimeUnit="ns")
    assert [graph.kernels.names[code] for code in graph.kernels.name] == [
        "MemcpyH2D", "gemm_fusion_dot_12", "all-reduce-start.2",
    ]  # fmt: skip
    assert graph.kernels.kind.tolist() == [COPY, COMPUTE, COLLECTIVE]
    assert [op.name for op in graph.ops] == ["ProfilerStep#4", "PjitFunction(step)"]
    assert graph.kernels.op.tolist() == [-1, 1, 1]
    report = measure_step(Job([graph]))
    assert report.step == "ProfilerStep#4"
    assert report.device_active_ms == pytest.approx(0.045)


def test_a_tpu_has_ops_and_no_launches(tmp_path: Path):
    graph = read(tmp_path, [
        *named(3, "/device:TPU:0", t1="Steps", t2="XLA Modules", t3="XLA Ops"), *named(701, "/host:CPU"),
        span(701, 1, "train", 0, 50.0, step_num=1), span(701, 1, "train", 50, 50.0, step_num=2),
        span(3, 1, "1", 5, 40), span(3, 2, "jit_f(1)", 5, 40),
        span(3, 3, "fusion.1", 5, 20), span(3, 3, "copy.2", 60, 4),
    ])  # fmt: skip
    assert [graph.kernels.names[code] for code in graph.kernels.name] == ["fusion.1", "copy.2"]
    assert measure_step(Job([graph]), "ProfilerStep#2").device_active_ms == pytest.approx(0.004)


def test_devices_keep_the_numbers_that_their_names_have(tmp_path: Path) -> None:
    events = [*named(5, "/device:GPU:2", t14="Stream #14(Compute)"), *named(9, "/device:GPU:3", t14="Stream #14")]
    events += [span(pid, 14, "fusion", 1000.0 + pid, 5.0, hlo_op="fusion") for pid in (5, 9)]
    assert any("the trace holds work of 2 (2, 3)" in note for note in read(tmp_path, events).notes)


def test_an_ascend_trace_has_text_for_times_and_flows_for_launches(tmp_path: Path):
    graph = read(tmp_path, [
        *named(2, "Python"), *named(4, "CANN"), *named(5, "Ascend Hardware", t2="Stream 2"),
        *named(6, "Overlap Analysis"),
        span(2, 9, "aten::matmul", "1713000000000100.250", 30) | {"cat": "cpu_op"},
        {"ph": "s", "pid": 2, "tid": 9, "ts": "1713000000000105.250", "id": "77", "cat": "async_npu", "name": "to_npu"},
        {"ph": "f", "pid": 5, "tid": 2, "ts": "1713000000000150.500", "id": "77", "cat": "async_npu", "name": "to_npu"},
        span(5, 2, "MatMulV2", "1713000000000150.500", 40.5),
        span(6, 0, "Computing", "1713000000000150.500", 40.5), span(4, 9, "AscendCL@launch", "1713000000000106.0", 3),
    ])  # fmt: skip
    assert [op.name for op in graph.ops] == ["aten::matmul"]
    assert graph.kernels.op.tolist() == [0]
    assert float(graph.kernels.end[0] - graph.kernels.start[0]) == 40.5


def test_a_trace_of_pytorch_before_kineto_is_read(tmp_path: Path):
    events = [
        span("CPU functions", 0, "conv2d", 10.0, 20.0), span("CPU functions", 0, "MulBackward0", 40.0, 5.0),
        {"ph": "s", "pid": "CPU functions", "tid": 0, "ts": 12.0, "id": 1, "name": "conv2d", "cat": "cpu_to_cuda"},
        {"ph": "f", "pid": "CUDA functions", "tid": 0, "ts": 25.0, "id": 1, "name": "conv2d", "cat": "cpu_to_cuda"},
        span("CUDA functions", 0, "implicit_gemm", 25.0, 8.0),
    ]  # fmt: skip
    (tmp_path / "old.json").write_text(json.dumps(events))
    graph = load_traces(tmp_path / "old.json").graphs[0]
    assert [op.name for op in graph.ops] == ["aten::conv2d", "MulBackward0"]
    assert graph.kernels.op.tolist() == [0]


def test_a_flow_that_begins_where_an_op_does_says_in_which_op_the_launch_is_and_not_when(tmp_path: Path) -> None:
    events = []
    for number, at in enumerate((100.0, 300.0)):
        flow = {"id": number, "name": "addmm", "cat": "cpu_to_cuda", "tid": 0}
        events += [
            span("CPU functions", 0, "addmm", at, 50.0), {**flow, "ph": "s", "pid": "CPU functions", "ts": at},
            {**flow, "ph": "f", "pid": "CUDA functions", "ts": at + 60},
            span("CUDA functions", 0, "sgemm", at + 60, 90.0),
        ]  # fmt: skip
    (tmp_path / "old.json").write_text(json.dumps(events))
    report = measure_step(Job(load_traces(tmp_path / "old.json").graphs))
    assert report.bound == "host"
    assert report.idle_causes["T2"] == pytest.approx(0.098) and report.idle_causes["latency"] == pytest.approx(0.02)


def test_a_rocprof_trace_has_its_gpus_by_number_and_its_numbers_as_text(tmp_path: Path) -> None:
    events = [*named(6, "GPU0"), *named(2, "CPU HIP API"), *named(5, "COPY")]
    for number in range(3):
        at = 100 * number
        flow = {"id": str(number + 1), "cat": "DataFlow", "name": "dep"}
        events += [
            {**span(2, 7, "hipLaunchKernel", str(at), 0), "dur": "5"},
            {**flow, "ph": "s", "pid": "2", "tid": "7", "ts": str(at)},
            {**flow, "ph": "t", "pid": "6", "tid": "0", "ts": str(at + 10)},
            {**span(6, 0, "Cijk_Ailk_Bljk_SB_MT64", str(at + 10), 0), "dur": "60"},
        ]
    graph = read(tmp_path, events)
    assert [graph.calls.names[code] for code in graph.calls.name] == ["hipLaunchKernel"] * 3
    assert graph.kernels.call.tolist() == [0, 1, 2]
    assert measure_step(graph).device_active_ms == pytest.approx(0.18)


@pytest.mark.parametrize(
    "odd", [3, {"ph": [], "ts": 1}, {"ph": "X", "pid": [1], "tid": {}, "ts": "soon"}, {"ph": "s", "id": None}]
)
def test_odd_events_among_them_are_no_bug(tmp_path: Path, odd: Any):
    try:
        read(tmp_path, [*jax_step(), odd])
    except ForetraceError as error:
        assert "trace.json" in str(error)
