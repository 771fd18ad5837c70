"""Traces of rocprofv3."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.formats.load import load_traces
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.graph.tables import COMPUTE, COPY, LAUNCH, SYNC

OPERATIONS = ["NONE", "hipLaunchKernel", "hipMemcpyAsync", "hipDeviceSynchronize"]


def record(kind: int, operation: int, correlation: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    return {
        "size": 64, "kind": kind, "operation": operation, "thread_id": 501, "start_timestamp": start,
        "end_timestamp": end, "correlation_id": {"internal": correlation, "external": 0}, **more,
    }  # fmt: skip


def process(pid: int = 501) -> dict[str, Any]:
    """A marked step with a kernel and a copy; times in ns since the machine's boot."""
    t = 900_000_000_000_000
    dispatch = {
        "agent_id": {"handle": 9001}, "queue_id": {"handle": 1}, "kernel_id": 17, "dispatch_id": 1,
        "workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 1024, "y": 3, "z": 1},
    }  # fmt: skip
    return {
        "metadata": {"pid": pid, "init_time": t, "fini_time": t + 10**9},
        "agents": [{"id": {"handle": 9000}, "type": 1, "name": "EPYC"},
                   {"id": {"handle": 9001}, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X"}],
        "kernel_symbols": [{"kernel_id": 17, "kernel_name": "_Z3addPf.kd", "formatted_kernel_name": "add(float*)"}],
        "strings": {
            "buffer_records": [{"kind": "NONE", "operations": []},
                               {"kind": "HIP_RUNTIME_API", "operations": OPERATIONS},
                               {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
                               {"kind": "MARKER_CORE_API", "operations": ["roctxThreadRangeA"]}],
            "marker_api": [{"key": 40, "value": "ProfilerStep#2"}, {"key": 41, "value": "aten::add"}],
        },
        "buffer_records": {
            "hip_api": [record(1, 1, 1, t + 11_000, t + 13_000), record(1, 2, 2, t + 21_000, t + 22_000),
                        record(1, 3, 3, t + 30_000, t + 70_000)],
            "kernel_dispatch": [record(4, 1, 1, t + 20_000, t + 45_250, dispatch_info=dispatch)],
            "memory_copy": [record(2, 1, 2, t + 46_000, t + 50_000, bytes=8192, dst_agent_id={"handle": 9001})],
            "marker_api": [record(3, 0, 40, t, t + 90_000), record(3, 0, 41, t + 10_000, t + 15_000)],
        },
    }  # fmt: skip


def read(folder: Path, data: Any) -> Graph:
    (folder / "results.json").write_text(json.dumps(data))
    return load_traces(folder / "results.json").graphs[0]


@pytest.mark.parametrize("listed", [True, False])
def test_kernels_copies_calls_and_markers_are_read(tmp_path: Path, listed: bool):
    graph = read(tmp_path, {"rocprofiler-sdk-tool": [process()] if listed else process()})
    assert [graph.kernels.names[code] for code in graph.kernels.name] == [
        "add(float*)", "Memcpy (MEMORY_COPY_HOST_TO_DEVICE)",
    ]  # fmt: skip
    assert graph.kernels.kind.tolist() == [COMPUTE, COPY]
    assert graph.kernels.grid.tolist()[0] == 12 and graph.kernels.block.tolist()[0] == 256
    assert float(graph.kernels.end[0] - graph.kernels.start[0]) == 25.25
    assert graph.kernels.nbytes.tolist()[1] == 8192
    assert graph.calls.kind.tolist() == [LAUNCH, LAUNCH, SYNC]
    assert graph.kernels.op.tolist() == [1, 0]
    assert graph.device == "AMD Instinct MI300X"
    assert measure_step(Job([graph])).step == "ProfilerStep#2"


def test_of_several_processes_the_busiest_is_shown(tmp_path: Path):
    idle = process(502)
    idle["buffer_records"]["kernel_dispatch"] = []
    graph = read(tmp_path, {"rocprofiler-sdk-tool": [idle, process()]})
    assert len(graph.kernels) == 2
    assert any("2 processes" in note for note in graph.notes)


def test_processes_with_kernels_are_ranks(tmp_path: Path):
    (tmp_path / "results.json").write_text(json.dumps({"rocprofiler-sdk-tool": [process(), process(502)]}))
    job = load_traces(tmp_path / "results.json")
    assert [(graph.rank, len(graph.kernels)) for graph in job.graphs] == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    "data", [[], {}, [{}], 7, [{"buffer_records": {"kernel_dispatch": [{"dispatch_info": 3}, 4]}}]]
)
def test_a_trace_of_nothing_or_of_odd_records_is_no_bug(tmp_path: Path, data: Any):
    try:
        graph = read(tmp_path, {"rocprofiler-sdk-tool": data})
        assert len(graph.kernels) == 1
    except ForetraceError as error:
        assert "results.json holds no kernels or calls" in str(error)
