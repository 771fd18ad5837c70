"""Profiler traces: what comes out as a graph, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.formats.kineto import read_kineto
from foretrace.formats.kineto.decode import decode_events, lenient_event
from foretrace.formats.kineto.read import NO_SHAPES
from foretrace.graph import ForetraceError, Graph
from foretrace.graph.graph import cautions
from foretrace.graph.tables import (
    ANNOTATION,
    CALL,
    COLLECTIVE,
    COMPUTE,
    COPY,
    FUNCTION,
    LAUNCH,
    MODULE,
    NODE,
    OTHER_CALL,
    RECORD_EVENT,
    SET,
    SYNC,
    WAIT_EVENT,
)
from tests.traces import AUTOGRAD, BASE_NS, MAIN, Trace, training_step


def read(trace: Trace | bytes, folder: Path) -> Graph:
    path = folder / "trace.json"
    path.write_bytes(trace.text() if isinstance(trace, Trace) else trace)
    return read_kineto(path)


def row(graph: Graph, name: str, phase: str | None = None) -> int:
    rows = [i for i, op in enumerate(graph.ops) if op.name == name and phase in (None, op.phase)]
    assert len(rows) == 1, f"{len(rows)} ops are called {name}"
    return rows[0]


def kernel(graph: Graph, name: str) -> int:
    return [graph.kernels.names[code] for code in graph.kernels.name].index(name)


def test_ops_nest_and_have_kinds(tmp_path: Path) -> None:
    graph = read(training_step(), tmp_path)
    ops = graph.ops
    mm, linear = row(graph, "aten::mm", "forward"), row(graph, "aten::linear")
    module = row(graph, "nn.Module: Linear_0")
    assert ops.parent[mm] == linear
    assert ops.parent[linear] == module
    assert ops.names[ops.name[ops.parent[module]]] == "ProfilerStep#3"
    kinds = {ops.names[ops.name[i]]: ops.kind[i] for i in range(len(ops))}
    assert kinds["aten::mm"] == kinds["aten::_foreach_add_"] == CALL
    assert kinds["autograd::engine::evaluate_function: MmBackward0"] == kinds["MmBackward0"] == NODE
    assert kinds["ProfilerStep#3"] == kinds["Optimizer.step#AdamW.step"] == ANNOTATION
    assert kinds["nn.Module: Linear_0"] == MODULE
    assert (np.diff(ops.start) >= 0).all()
    assert ops[mm].module == "Linear_0"
    assert ops[row(graph, "aten::mm", "backward")].module == ""


def test_phases_follow_autograd_and_the_optimizer(tmp_path: Path) -> None:
    graph = read(training_step(), tmp_path)
    phases = {(op.name, op.phase) for op in graph.ops}
    assert {("aten::mm", "forward"), ("aten::mm", "backward"), ("MmBackward0", "backward")} <= phases
    assert ("aten::_foreach_add_", "optimizer") in phases


def test_work_between_backward_and_the_optimizer_is_neither(tmp_path: Path) -> None:
    trace = Trace()
    for number in (1, 2):
        with trace.step(number):
            for _ in range(2):  # gradient accumulation
                with trace.op("aten::mm"):
                    pass
                with trace.op("autograd::engine::evaluate_function: MmBackward0", tid=AUTOGRAD):
                    pass
            with trace.op("aten::_foreach_norm"):
                pass
            with trace.op("Optimizer.step#SGD.step", "user_annotation"), trace.op("aten::_foreach_add_"):
                pass
            with trace.op("aten::item"):
                pass
    graph = read(trace, tmp_path)
    of = {name: {op.phase for op in graph.ops if op.name == name} for name in ("aten::mm", "aten::_foreach_norm")}
    assert of == {"aten::mm": {"forward"}, "aten::_foreach_norm": {"other"}}


@pytest.mark.parametrize("category", ["user_annotation", "Operator"])  # the second before PyTorch 1.11
def test_annotations_of_a_pipeline_schedule_say_the_phase(tmp_path: Path, category: str) -> None:
    trace = Trace()
    for name, call in (("attn(F)", "aten::mm"), ("mlp(B)", "aten::bmm"), ("mlp(W)", "aten::add")):
        with trace.op(name, category), trace.op(call):
            pass
    graph = read(trace, tmp_path)
    phases = {op.name: op.phase for op in graph.ops}
    assert (phases["aten::mm"], phases["aten::bmm"], phases["aten::add"]) == ("forward", "backward", "backward")


@pytest.mark.parametrize(
    "name", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data_loading", "next(train_iter)"]
)
def test_what_loads_data_is_no_part_of_the_forward(tmp_path: Path, name: str) -> None:
    trace = Trace()
    with trace.step(1):
        with trace.op(name, "user_annotation"), trace.op("aten::stack"):
            pass
        with trace.op("aten::mm"):
            pass
    phases = {op.name: op.phase for op in read(trace, tmp_path).ops}
    assert (phases["aten::stack"], phases["aten::mm"]) == ("other", "forward")


def test_autograd_nodes_of_old_traces_have_no_wrapper_and_are_backward(tmp_path: Path) -> None:
    trace = Trace()
    with trace.op("aten::mm"):
        pass
    with trace.op("MmBackward", tid=AUTOGRAD), trace.op("aten::bmm", tid=AUTOGRAD):
        pass
    phases = {op.name: op.phase for op in read(trace, tmp_path).ops}
    assert (phases["aten::mm"], phases["aten::bmm"]) == ("forward", "backward")


def test_annotations_and_long_python_functions_are_activities(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        with trace.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"):
            pass
        for name in ("loop.py(1): run", "short.py(1): run"):
            with trace.op(name, "python_function"), trace.op("aten::mm"):
                pass
    for event in trace.events:
        event["dur"] = 400 if event["name"] == "loop.py(1): run" else event.get("dur", 0)
    table = read(trace, tmp_path).activities
    found = {table.names[code]: int(kind) for code, kind in zip(table.name, table.kind)}
    assert found == {
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": ANNOTATION,
        "loop.py(1): run": FUNCTION,
    }


def test_kernels_know_their_launch_and_its_op(tmp_path: Path) -> None:
    graph = read(training_step(), tmp_path)
    kernels, calls = graph.kernels, graph.calls
    k = kernel(graph, "gemm_backward")
    call = kernels.call[k]
    assert calls.names[calls.name[call]] == "cudaLaunchKernel"
    assert kernels.op[k] == calls.op[call] == row(graph, "aten::mm", "backward")
    assert calls.end[call] <= kernels.start[k]
    assert kernels.grid[k] == 4
    assert kernels.block[k] == 128
    assert graph.device == "NVIDIA H200"


def test_runtime_calls_have_kinds(tmp_path: Path) -> None:
    names = {
        LAUNCH: "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx cudaLaunchCooperativeKernel "
        "cudaMemcpyAsync cudaMemcpy cudaMemsetAsync cudaGraphLaunch hipLaunchKernel hipExtModuleLaunchKernel "
        "hipModuleLaunchKernel hipMemcpyWithStream hipGraphLaunch",
        SYNC: "cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize hipStreamSynchronize cuCtxSynchronize",
        WAIT_EVENT: "cudaStreamWaitEvent hipStreamWaitEvent",
        RECORD_EVENT: "cudaEventRecord cudaEventRecordWithFlags hipEventRecord",
        OTHER_CALL: "cudaMalloc cudaEventQuery cudaStreamIsCapturing cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    }
    trace = Trace()
    for name in " ".join(names.values()).split():
        trace.call(name)
    calls = read(trace, tmp_path).calls
    for kind, expected in names.items():
        assert [calls.names[calls.name[i]] for i in np.flatnonzero(calls.kind == kind)] == expected.split()


def test_a_call_that_launched_something_is_a_launch_whatever_its_name(tmp_path: Path) -> None:
    trace = Trace()
    trace.launch("kernel", call="urEnqueueKernelLaunch")
    assert read(trace, tmp_path).calls.kind.tolist() == [LAUNCH]


def test_device_work_has_kinds(tmp_path: Path) -> None:
    trace = Trace()
    trace.launch("gemm")
    trace.launch("Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", call="cudaMemcpyAsync", bytes=4096)
    trace.launch("Memset (Device)", cat="gpu_memset", call="cudaMemsetAsync", bytes=64)
    trace.launch("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    kernels = read(trace, tmp_path).kernels
    assert kernels.kind.tolist() == [COMPUTE, COPY, SET, COLLECTIVE]
    assert kernels.nbytes.tolist() == [0, 4096, 64, 0]


def test_all_kernels_of_a_cuda_graph_belong_to_its_launch(tmp_path: Path) -> None:
    trace = Trace()
    with trace.op("replay", "user_annotation"):
        correlation = trace.call("cudaGraphLaunch")
        for i in range(5):
            trace.add("kernel", f"k{i}", trace.now + 10 * i, 8, 7, 0, device=0, stream=7, correlation=correlation)
    graph = read(trace, tmp_path)
    assert set(graph.kernels.call.tolist()) == {0}
    assert set(graph.kernels.op.tolist()) == {row(graph, "replay")}


def test_a_kernel_launched_before_the_trace_began_has_no_call(tmp_path: Path) -> None:
    trace = training_step()
    trace.add("kernel", "early", trace.now, 7.5, 7, 0, device=0, stream=7, correlation=999_999)
    graph = read(trace, tmp_path)
    k = kernel(graph, "early")
    assert graph.kernels.call[k] == graph.kernels.op[k] == -1
    assert graph.launched_before_us == 7.5


def test_a_runtime_thread_without_a_name_is_the_op_thread_its_launches_fall_into(tmp_path: Path) -> None:
    trace = training_step()
    for event in trace.events:
        if event["cat"] == "cuda_runtime":
            event["tid"] = {MAIN: -1029147072, AUTOGRAD: 608536128}[event["tid"]]
            event["args"]["External id"] = event["args"]["correlation"]
    trace.add("cuda_runtime", "cudaEventQuery", trace.now, 1, 174138944, correlation=77_777)  # NCCL's watchdog
    graph = read(trace, tmp_path)
    assert (graph.kernels.op >= 0).all()
    assert graph.kernels.op[kernel(graph, "gemm_backward")] == row(graph, "aten::mm", "backward")
    watchdog = graph.calls.correlation.tolist().index(77_777)
    assert graph.calls.op[watchdog] == -1


def test_a_launch_outside_all_ops_is_found_by_its_external_id(tmp_path: Path) -> None:
    trace = Trace()
    with trace.op("aten::mm") as event:
        pass
    trace.now += 100
    trace.launch("gemm")
    trace.events[-2]["args"]["External id"] = event["args"]["External id"]
    graph = read(trace, tmp_path)
    assert graph.calls.op.tolist() == graph.kernels.op.tolist() == [0]


def test_old_external_ids_that_repeat_the_correlation_name_no_op(tmp_path: Path) -> None:
    trace = Trace()
    with trace.op("aten::mm") as event:
        pass
    trace.now += 100
    external: dict[str, Any] = {"External id": 0}
    trace.launch("gemm", **external)
    for event in trace.events:
        event["args"]["External id"] = event["args"].get("correlation", trace.events[1]["args"]["correlation"])
    assert read(trace, tmp_path).kernels.op.tolist() == [-1]


def test_the_version_of_cuda_is_read(tmp_path: Path) -> None:
    trace = training_step()
    assert read(trace, tmp_path).cuda_runtime == 0
    trace.head["cuda_runtime_version"] = 12040
    assert read(trace, tmp_path).cuda_runtime == 12040
    trace.head["cuda_runtime_version"] = "12.4"
    assert read(trace, tmp_path).cuda_runtime == 0


def test_streams_of_two_devices_are_two_lanes(tmp_path: Path) -> None:
    trace = Trace()
    trace.launch("one", device=0, stream=7)
    trace.launch("two", device=1, stream=7)
    trace.launch("three", device=0, stream=7)
    lanes = read(trace, tmp_path).kernels.stream
    assert lanes[0] == lanes[2] != lanes[1]


@pytest.mark.parametrize("unit", ["fractional", "whole", "epoch", "nanoseconds"])
def test_all_ways_to_write_a_time_give_the_same_graph(tmp_path: Path, unit: str) -> None:
    trace = training_step()
    if unit == "whole":
        for event in trace.events:
            event["ts"], event["dur"] = int(event["ts"]), int(event["dur"])
    if unit in ("epoch", "nanoseconds"):
        del trace.head["baseTimeNanoseconds"]
        for event in trace.events:
            stamp = int(event["ts"]) + BASE_NS // 1000
            event["ts"] = stamp if unit == "epoch" else stamp * 1000 + 1
            event["dur"] = int(event["dur"]) * (1 if unit == "epoch" else 1000)
    graph = read(trace, tmp_path)
    expected = read(training_step(), tmp_path)
    assert np.allclose(graph.ops.start, expected.ops.start)
    assert np.allclose(graph.kernels.end, expected.kernels.end)
    assert graph.origin_ns == expected.origin_ns + (unit == "nanoseconds")


def as_pairs(trace: Trace, asynchronous: bool) -> list[dict[str, Any]]:
    """Spans as begins and ends in order of time, those of the device with ids of their own if asynchronous."""
    borders = []
    for number, event in enumerate(trace.events):
        begin, end = ("b", "e") if asynchronous and event["cat"] == "kernel" else ("B", "E")
        about = {"cat": event["cat"], "pid": event["pid"], "tid": event["tid"], "id": number}
        depth = sum(e["ts"] <= event["ts"] and e["ts"] + e["dur"] >= event["ts"] + event["dur"] for e in trace.events)
        borders.append((event["ts"], depth, {**event, **about, "ph": begin}))
        borders.append((event["ts"] + event["dur"], -depth, {**about, "ph": end, "ts": event["ts"] + event["dur"]}))
    return [
        {key: value for key, value in event.items() if key != "dur"} for _, _, event in sorted(borders, key=by_time)
    ]


def by_time(border: tuple[float, int, dict[str, Any]]) -> tuple[float, int]:
    return border[:2]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pairs_of_begin_and_end_are_spans(tmp_path: Path, asynchronous: bool) -> None:
    trace = training_step()
    text = json.dumps({**trace.head, "traceEvents": as_pairs(trace, asynchronous)})
    graph, expected = read(text.encode(), tmp_path), read(training_step(), tmp_path)
    assert [op.name for op in graph.ops] == [op.name for op in expected.ops]
    assert np.array_equal(graph.ops.parent, expected.ops.parent)
    assert np.allclose(graph.kernels.end, expected.kernels.end)
    assert np.array_equal(graph.kernels.op, expected.kernels.op)
    assert graph.notes == expected.notes


def test_pairs_of_kernels_that_overlap_end_in_their_order(tmp_path: Path) -> None:
    trace, begins = Trace(), (10.0, 19.0, 28.0)
    for begin in begins:
        trace.add("kernel", "add", begin, 10.0, tid=7, device=0, stream=7, correlation=int(begin))
    graph = read(json.dumps({**trace.head, "traceEvents": as_pairs(trace, asynchronous=False)}).encode(), tmp_path)
    assert (graph.kernels.end - graph.kernels.start).tolist() == [10.0] * 3


def test_begins_without_ends_are_named(tmp_path: Path) -> None:
    pairs = as_pairs(training_step(), asynchronous=False)
    with pytest.raises(ForetraceError, match=r"events that begin \(ph B\) and no ends"):
        read(json.dumps([event for event in pairs if event["ph"] == "B"]).encode(), tmp_path)
    last = max(i for i, event in enumerate(pairs) if event["ph"] == "E")
    graph = read(json.dumps([*pairs[:last], *pairs[last + 1 :]]).encode(), tmp_path)
    assert "events that begin and never end are left out: 1" in graph.notes


def test_launches_that_only_flows_name_are_found(tmp_path: Path) -> None:
    trace, flows = training_step(), []
    for event in trace.events:
        if number := event["args"].pop("correlation", None):
            place = {key: event[key] for key in ("pid", "tid", "ts")}
            flows.append({"ph": "f" if event["cat"] == "kernel" else "s", "id": number, "cat": "ac2g", **place})
    unlinked = read(trace, tmp_path)
    trace.events += flows
    graph, expected = read(trace, tmp_path), read(training_step(), tmp_path)
    assert (unlinked.kernels.call < 0).all()
    assert np.array_equal(graph.kernels.call, expected.kernels.call)
    assert np.array_equal(graph.kernels.op, expected.kernels.op)


def test_events_that_a_file_holds_twice_count_once(tmp_path: Path) -> None:
    trace = training_step()
    events = len(trace.events)
    trace.events *= 2
    graph, expected = read(trace, tmp_path), read(training_step(), tmp_path)
    assert (len(graph.ops), len(graph.calls), len(graph.kernels)) == tuple(
        map(len, (expected.ops, expected.calls, expected.kernels))
    )
    assert np.array_equal(graph.kernels.op, expected.kernels.op)
    assert f"events that the file holds more than once are counted once: {events:,} left out" in graph.notes


def test_an_array_of_events_is_a_trace_too_with_or_without_its_last_bracket(tmp_path: Path) -> None:
    text = json.dumps(training_step().events).encode()
    for array in (text, text[:-1], text[:-1] + b",\n"):
        assert len(read(array, tmp_path).kernels) == 3


def test_steps_are_those_of_the_thread_that_has_most(tmp_path: Path) -> None:
    trace = Trace()
    for number in (4, 5):
        with trace.step(number), trace.op("aten::mm"):
            trace.launch("gemm")
    trace.add("user_annotation", "ProfilerStep#4", trace.now, 5, tid=999)
    trace.add("gpu_user_annotation", "ProfilerStep#4", trace.now, 5, tid=7, pid=0)
    graph = read(trace, tmp_path)
    assert [step.name for step in graph.steps] == ["ProfilerStep#4", "ProfilerStep#5"]
    assert graph.steps[0].end <= graph.steps[1].start


def test_allocations_on_the_device_are_kept(tmp_path: Path) -> None:
    trace = training_step()
    for at, kind, total in ((3.0, 1, 2048), (1.0, 1, 1024), (2.0, 0, 99)):
        args = {"Device Type": kind, "Device Id": 0, "Total Allocated": total, "Bytes": 1024}
        event = trace.add("cpu_instant_event", "[memory]", 1_000_000 + at, 0, **args)
        event["ph"] = "i"
        del event["dur"]
    assert read(trace, tmp_path).allocated == ((1.0, 1024), (3.0, 2048))


def test_python_functions_other_than_modules_are_dropped(tmp_path: Path) -> None:
    trace = training_step()
    trace.add("python_function", "train.py(12): main", 1_000_000, 500)
    assert "train.py(12): main" not in read(trace, tmp_path).ops.names.items


def test_a_trace_without_a_device_is_read(tmp_path: Path) -> None:
    trace = Trace()
    with trace.op("aten::mm"):
        pass
    graph = read(trace, tmp_path)
    assert (len(graph.ops), len(graph.calls), len(graph.kernels), graph.device) == (1, 0, 0, "")


def test_a_trace_of_kernels_alone_is_read(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("kernel", "gemm", 10, 5, 7, 0, device=0, stream=7, correlation=3)
    graph = read(trace, tmp_path)
    assert (len(graph.ops), graph.kernels.call.tolist(), graph.kernels.op.tolist()) == (0, [-1], [-1])
    assert any("no runtime calls" in note for note in graph.notes)


def test_what_a_trace_lacks_is_noted(tmp_path: Path) -> None:
    trace = Trace()
    with trace.op("aten::mm"):
        pass
    notes = read(trace, tmp_path).notes
    assert NO_SHAPES in notes
    assert any("no step marks" in note for note in notes)
    assert read(training_step(), tmp_path).notes == []


def test_rank_world_and_groups_come_from_the_head(tmp_path: Path) -> None:
    trace = training_step(rank=3, world=8)
    trace.head["distributedInfo"]["pg_config"] = [{"pg_name": "5", "ranks": [3, 7]}, {"pg_name": "odd", "ranks": "all"}]
    graph = read(trace, tmp_path)
    assert (graph.rank, graph.world, graph.groups) == (3, 8, {"5": (3, 7)})


def every_profile(shared: Path) -> list[Path]:
    found = [*shared.glob("public/*/*kineto*"), *shared.glob("traces/h200/*/kineto*")]
    assert len(found) > 30
    return sorted(found)


def test_device_time_launched_in_a_published_trace_has_an_owner(shared: Path) -> None:
    for path in every_profile(shared):
        graph = read_kineto(path)
        took = graph.kernels.end - graph.kernels.start
        inside = graph.kernels.call >= 0
        assert took[inside & (graph.kernels.op >= 0)].sum() > 0.995 * took[inside].sum(), path
        assert graph.steps, path
        assert graph.device, path


def test_the_arguments_of_every_op_of_our_traces_can_be_read(shared: Path) -> None:
    for path in sorted(shared.glob("traces/h200/dlrm*/kineto*")):
        shapes = [tensor.shape for op in read_kineto(path).ops for tensor in op.tensors]
        assert len(shapes) > 500


def test_the_eight_rank_megatron_has_its_collectives_and_kernels(shared: Path) -> None:
    graph = read_kineto(shared / "public/megatron_tp8_8xA100/rank0.kineto.json.gz")
    assert ((graph.kernels.kind == COMPUTE) | (graph.kernels.kind == COLLECTIVE)).sum() == 690
    assert len(graph.collectives) == 84
    assert [c.nbytes for c in graph.collectives].count(64 << 20) == 81
    assert {c.kind for c in graph.collectives} == {"all_reduce"}
    assert (graph.rank, graph.world, graph.device) == (0, 8, "NVIDIA A100-SXM4-80GB")


def test_a_rocm_trace_is_read_like_any_other(shared: Path) -> None:
    graph = read_kineto(shared / "public/single_rank/mi300_qwen_0.5b.kineto.json.gz")
    assert graph.device == "AMD Instinct MI300X VF"
    assert (graph.calls.kind == LAUNCH).sum() > 1000
    assert (graph.calls.kind == SYNC).any()
    assert len(graph.ops.modules) > 50
    assert graph.allocated


def launches(number: int, ids: list[int], gap_us: float, late_us: float) -> Trace:
    """Ops that launch a kernel each, with these correlation ids; every kernel starts so late after its launch."""
    trace = Trace()
    for place in range(number):
        at = 1_000_000.0 + place * gap_us
        common = {"correlation": ids[place], "External id": 7}
        trace.add("cpu_op", f"aten::op{place}", at, 5.0, MAIN, **{"External id": 7})
        trace.add("cuda_runtime", "cudaLaunchKernel", at + 1, 2.0, MAIN, **common)
        trace.add("kernel", f"kernel{place}", at + late_us, 1.0, 7, 0, device=0, stream=7, **common)
    return trace


def test_launches_whose_kernels_the_profiler_lost_are_noted(tmp_path: Path) -> None:
    trace = launches(20, list(range(1, 21)), gap_us=10.0, late_us=4.0)
    trace.events = [event for event in trace.events if event["name"] not in ("kernel3", "kernel4")]
    note = "kernels are missing: 2 of 20 launches have none in the trace; the device worked longer than is shown"
    assert cautions(read(trace, tmp_path).notes) == [note]
    trace.add("cuda_runtime", "cudaStreamBeginCapture_v10000", 1_000_000.0, 1.0, MAIN, correlation=99)
    assert note not in read(trace, tmp_path).notes, "what is captured runs later"


def test_kernels_before_their_launches_are_moved_since_clocks_differ(tmp_path: Path) -> None:
    seen = read(launches(5, [1, 2, 3, 4, 5], 10.0, -29.0), tmp_path)
    assert (seen.kernels.start - seen.calls.start[seen.kernels.call]).tolist() == [0.0] * 5
    assert [note for note in seen.notes if "clocks" in note] == [
        "the clocks of host and device differ: kernels are moved by 30 us, the least with which none starts before the "
        "call that launched it"
    ]


def test_kernels_far_before_their_launches_stay_where_they_are(tmp_path: Path) -> None:
    seen = read(launches(5, [1, 2, 3, 4, 5], 10.0, -2999.0), tmp_path)
    early = "5 of 5 kernels start before the calls that launched them, by up to 3,000 us: "
    assert early + "the clocks of host and device differ by as much or more" in seen.notes
    assert (seen.kernels.start - seen.calls.start[seen.kernels.call]).tolist() == [-3000.0] * 5


def test_numbers_of_threads_as_text_are_the_same_whichever_way_a_chunk_is_decoded() -> None:
    event = {"ph": "X", "pid": "python", "tid": "4711"}
    strict, lenient = decode_events(json.dumps([event]).encode())[0], lenient_event(event)
    assert (strict.pid, strict.tid) == (lenient.pid, lenient.tid) == ("python", "4711")


def owners(graph: Graph) -> list[str]:
    return [graph.ops.names[graph.ops.name[op]] if op >= 0 else "" for op in graph.kernels.op.tolist()]


def test_kernels_whose_launches_share_an_id_have_no_owner_unless_time_tells_it(tmp_path: Path) -> None:
    late = read(launches(4, [7] * 4, gap_us=10.0, late_us=25.0), tmp_path)
    assert owners(late) == ["", "", "", ""]
    assert late.notes[-1] == (
        "several launches have the same correlation id: which op launched 4 of 4 kernels, 100 % of the device time, "
        "is unknown"
    )
    each_in_turn = read(launches(4, [7] * 4, gap_us=10.0, late_us=4.0), tmp_path)
    assert owners(each_in_turn) == [f"aten::op{place}" for place in range(4)]
    restarted = read(launches(4, [1, 2, 1, 2], gap_us=100.0, late_us=150.0), tmp_path)
    assert owners(restarted) == [f"aten::op{place}" for place in range(4)]
    for graph in (each_in_turn, restarted):
        assert not any("correlation" in note for note in graph.notes)


def test_a_graph_launch_that_shares_its_id_with_another_has_no_kernels_for_certain(tmp_path: Path) -> None:
    trace = launches(2, [7, 7], gap_us=10.0, late_us=4.0)
    trace.add("kernel", "more", 1_000_006.0, 1.0, 7, 0, correlation=7, device=0, stream=7)
    graph = read(trace, tmp_path)
    assert owners(graph).count("") == 2 and "2 of 3 kernels" in graph.notes[-1]


@pytest.mark.parametrize("cat", ["kernel", "cpu_op", "cuda_runtime"])
def test_an_event_that_takes_years_is_refused(tmp_path: Path, cat: str) -> None:
    trace = training_step()
    next(event for event in trace.events if event.get("cat") == cat)["dur"] = 1e15
    with pytest.raises(ForetraceError, match=r"trace.json: event '.*' takes 1e\+09 s, which no event of a step does"):
        read(trace, tmp_path)


def test_a_step_in_which_the_profiler_stopped_at_once_is_none(shared: Path):
    graph = read_kineto(shared / "public/wild/mi250_toy.json.gz")
    assert [step.name for step in graph.steps] == ["ProfilerStep#1"]


@pytest.mark.parametrize(
    ("runtime", "launch", "device"),
    [("xpu_runtime", "urEnqueueKernelLaunch", "kernel"), ("privateuse1_runtime", "aclrtLaunchKernel", "npu_kernel"),
     ("hpu_runtime", "synLaunch", "hpu_op")],
)  # fmt: skip
def test_work_of_other_accelerators_is_device_work(tmp_path: Path, runtime: str, launch: str, device: str) -> None:
    trace = Trace()
    with trace.op("aten::mm"):
        trace.add(runtime, launch, trace.now, 2, correlation=7)
        trace.add(device, "gemm", trace.now + 10, 30, pid=0, tid=1, correlation=7, stream=1)
    graph = read(trace, tmp_path)
    assert graph.kernels.op.tolist() == [0] and graph.kernels.kind.tolist() == [COMPUTE]
    assert graph.calls.kind.tolist() == [LAUNCH]


def test_an_mtia_copies_computes_and_waits(shared: Path):
    graph = read_kineto(shared / "public/wild/mtia_inference.json.gz")
    names = [graph.kernels.names[code] for code in graph.kernels.name]
    assert len(names) == 877 + 37 + 36 + 24 and "event_wait" not in names
    assert (graph.kernels.kind == COPY).sum() == 877


def test_a_device_with_an_odd_number_is_no_bug(tmp_path: Path) -> None:
    trace = json.loads(training_step().text())
    trace["deviceProperties"] = [{"id": [0], "name": "NVIDIA H200"}, {"id": {}, "name": "x"}, 7]
    assert read(json.dumps(trace).encode(), tmp_path).device == "NVIDIA H200"


def test_steps_that_only_the_device_marks_go_from_launch_to_launch(tmp_path: Path) -> None:
    trace = Trace()
    for number in (4, 5):
        with trace.op("aten::mm"):
            trace.launch("gemm")
            gemm = trace.events[-1] if trace.events[-1].get("cat") == "kernel" else trace.events[-2]
        trace.add("gpu_user_annotation", f"ProfilerStep#{number}", gemm["ts"], gemm["dur"], tid=7, pid=0)
    graph = read(trace, tmp_path)
    assert [step.name for step in graph.steps] == ["ProfilerStep#4", "ProfilerStep#5"]
    assert [step.start for step in graph.steps] == [float(start) for start in graph.calls.start]
    assert graph.steps[0].end == graph.steps[1].start
    assert any("steps are marked on the device's track alone" in note for note in graph.notes)
