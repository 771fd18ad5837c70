"""Reading a recording: the structure's calls at the profile's times."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from foretrace.api import load
from foretrace.formats.kineto import read_kineto
from foretrace.graph import Collective, ForetraceError, Graph, Indices, Op, OpTable, Storage, Tensor
from foretrace.graph.tables import ANNOTATION, CALL
from foretrace.record import folder as files
from foretrace.record.recording import load_recording, with_times
from tests.traces import AUTOGRAD, Trace, all_reduce

H200 = Path(__file__).parents[1] / "data" / "h200" / "dlrm_default_b512"


def structure(*names: str, **more: object) -> Graph:
    return Graph(OpTable.of([Op(name) for name in names]), **more)  # type: ignore[arg-type]


def read(trace: Trace, folder: Path) -> Graph:
    return read_kineto(trace.write(folder / "profile.json"))


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def owners(graph: Graph) -> dict[str, str]:
    """The op that launched each kernel."""
    kernel = graph.kernels
    return {
        kernel.names[code]: graph.ops[op].name if op >= 0 else "" for code, op in zip(kernel.name, kernel.op.tolist())
    }


def linear() -> Trace:
    """A linear layer forward and backward: composite calls, internals and autograd's nodes around what counts."""
    trace = Trace()
    with trace.step(1):
        with trace.op("aten::linear"):
            with trace.op("aten::t"):
                pass
            with trace.op("aten::addmm"), trace.op("aten::empty"):
                trace.launch("gemm")
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        with trace.op(node, tid=AUTOGRAD), trace.op("aten::mm", tid=AUTOGRAD):
            trace.launch("gemm_backward", tid=AUTOGRAD)
    return trace


def test_calls_take_their_times_threads_and_kernels_from_the_profile(tmp_path: Path) -> None:
    profile = read(linear(), tmp_path)
    graph = with_times(structure("aten::t", "aten::addmm", "aten::mm"), profile)
    assert names(graph) == ["aten::t", "aten::addmm", "aten::mm"]
    assert owners(graph) == {"gemm": "aten::addmm", "gemm_backward": "aten::mm"}
    rows = [next(r for r in range(len(profile.ops)) if profile.ops[r].name == name) for name in names(graph)]
    assert graph.ops.start.tolist() == profile.ops.start[rows].tolist()
    assert graph.ops.end.tolist() == profile.ops.end[rows].tolist()
    assert graph.ops[0].thread == graph.ops[1].thread != graph.ops[2].thread
    assert graph.notes == ["100.0 % of the recorded calls found in the profile"]
    assert graph.origin_ns == profile.origin_ns and graph.steps == profile.steps


def test_the_share_of_calls_that_were_found_is_told(tmp_path: Path) -> None:
    graph = with_times(structure("aten::t", "aten::addmm", "aten::mm", "aten::gone"), read(linear(), tmp_path))
    assert graph.notes == ["75.0 % of the recorded calls found in the profile"]


def test_a_side_call_is_not_missed_in_the_profile(tmp_path: Path) -> None:
    graph = with_times(structure("aten::t", "cuda::event_record", "aten::addmm"), read(linear(), tmp_path))
    assert graph.notes == ["100.0 % of the recorded calls found in the profile"]


def test_a_call_the_profile_does_not_show_stands_beside_its_neighbours(tmp_path: Path) -> None:
    seen = structure(
        "storage::resize_", "aten::t", "cuda::event_record", "aten::addmm", "aten::mm", "cuda::event_record"
    )
    graph = with_times(seen, read(linear(), tmp_path))
    assert names(graph) == names(seen)
    times = list(zip(graph.ops.start, graph.ops.end))
    assert times[0] == (graph.ops.start[1],) * 2, "the first one, where the first call shown begins"
    assert times[2] == (graph.ops.end[1],) * 2 and times[5] == (graph.ops.end[4],) * 2
    assert graph.ops[2].thread == graph.ops[1].thread and graph.ops[5].thread == graph.ops[4].thread


def test_what_launches_without_being_a_call_becomes_an_op(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        with trace.op("aten::t"):
            pass
        with trace.op("triton_poi_fused_relu_0"):
            trace.launch("triton_poi_fused_relu_0")
        with trace.op("aten::mm"):
            trace.launch("gemm")
    graph = with_times(structure("aten::t", "aten::mm"), read(trace, tmp_path))
    assert names(graph) == ["aten::t", "triton_poi_fused_relu_0", "aten::mm"]
    assert owners(graph) == {"triton_poi_fused_relu_0": "triton_poi_fused_relu_0", "gemm": "aten::mm"}
    assert graph.ops.kind.tolist() == [CALL] * 3
    assert np.isfinite(graph.ops.start).all()


def test_a_call_inside_of_another_that_was_not_recorded_owns_its_kernels(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        for kernel, inner in (("gemm", "aten::mm"), ("batched", "aten::bmm")):
            with trace.op("aten::mm"), trace.op("aten::matmul"), trace.op("aten::expand"), trace.op(inner):
                trace.launch(kernel)
        with trace.op("aten::sum"):
            trace.launch("reduce")
    seen = structure("aten::mm", "aten::expand", "aten::bmm", "aten::_unsafe_view", "aten::sum")
    graph = with_times(seen, read(trace, tmp_path))
    assert names(graph) == names(seen)
    assert owners(graph) == {"gemm": "aten::mm", "batched": "aten::bmm", "reduce": "aten::sum"}


def test_a_compiled_kernel_takes_its_tensors_from_the_execution_trace(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        for _ in range(2):
            with trace.op("triton_poi_fused_relu_0"):
                trace.launch("triton_poi_fused_relu_0")
    reported = [Op("triton_poi_fused_relu_0", (Tensor((size,), "float32"),)) for size in (4, 8)]
    graph = with_times(structure("aten::t"), read(trace, tmp_path), Graph(OpTable.of([Op("aten::t"), *reported])))
    assert [op.tensors[0].shape for op in graph.ops if op.name.startswith("triton")] == [(4,), (8,)]


def test_a_kernel_that_only_an_annotation_launched_belongs_to_it(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        with trace.op("my own kernel", "user_annotation"):
            trace.launch("handwritten")
        with trace.op("aten::mm"):
            trace.launch("gemm")
    graph = with_times(structure("aten::mm"), read(trace, tmp_path))
    assert owners(graph) == {"handwritten": "my own kernel", "gemm": "aten::mm"}
    assert [graph.ops.kind[row] for row, name in enumerate(names(graph)) if name == "my own kernel"] == [ANNOTATION]


def test_collectives_find_their_kernels(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    with trace.step(1):
        with trace.op("aten::mm"):
            trace.launch("gemm")
        all_reduce(trace, 1024, 2, ends=trace.now + 500)
    planned = Collective("all_reduce", "0", 4096, kernel=-1, op=1, ranks=(0, 1))
    graph = with_times(structure("aten::mm", "c10d::allreduce_", collectives=[planned]), read(trace, tmp_path))
    (found,) = graph.collectives
    assert graph.kernels.names[graph.kernels.name[found.kernel]].startswith("ncclDevKernel")
    assert graph.ops[found.op].name == "c10d::allreduce_" and found.nbytes == 4096


def test_collectives_of_gloo_are_where_its_threads_did_them(tmp_path: Path) -> None:
    """The call returns at once: its own times would tell nothing of the collective."""
    trace = Trace(0, 2)
    with trace.step(1):
        for number, kind in enumerate(("all_gather", "all_reduce")):
            with trace.op("c10d::_allgather_base_" if not number else "c10d::_reduce_scatter_base_"):
                pass
            trace.add("user_annotation", f"gloo:{kind}", trace.now, 100.0, tid=900 + number)
            trace.now += 10
        trace.now += 500
    planned = [Collective("all_gather", "0", 8, -1, 0, (0, 1)), Collective("reduce_scatter", "0", 8, -1, 1, (0, 1))]
    seen = structure("c10d::_allgather_base_", "c10d::_reduce_scatter_base_", collectives=planned)
    graph = with_times(seen, read(trace, tmp_path))
    assert [c.kind for c in graph.collectives] == ["all_gather", "reduce_scatter"]
    assert [graph.ops[c.op].name for c in graph.collectives] == ["gloo:all_gather", "gloo:all_reduce"]
    assert [graph.ops.end[c.op] - graph.ops.start[c.op] for c in graph.collectives] == [100.0, 100.0]
    assert all(graph.ops.kind[c.op] == ANNOTATION for c in graph.collectives)


def test_storages_and_indices_follow_the_ops_that_move(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        with trace.op("triton_poi_fused_0"):
            trace.launch("triton_poi_fused_0")
        with trace.op("aten::embedding"):
            trace.launch("gather")
    storages = {
        0: Storage(0, 8, "cuda:0", birth=0, death=1),
        1: Storage(1, 8, "cuda:0", birth=-1, death=-1),
    }
    lookup = Indices(op=0, rows=4, count=2, unique=2, bags=2, reuse=(2,))
    seen = structure("aten::embedding", storages=storages, indices=[lookup])
    graph = with_times(seen, read(trace, tmp_path))
    assert names(graph) == ["triton_poi_fused_0", "aten::embedding"]
    assert graph.indices[0].op == 1
    assert (graph.storages[0].birth, graph.storages[0].death) == (1, 2), "freed after the last op, as before"
    assert (graph.storages[1].birth, graph.storages[1].death) == (-1, -1)
    assert (storages[0].birth, seen.indices[0].op) == (0, 0), "the structure itself is as it was"


def test_a_profile_without_a_single_call_leaves_the_structure(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        trace.now += 100
    graph = with_times(structure("aten::mm", "aten::relu"), read(trace, tmp_path))
    assert names(graph) == ["aten::mm", "aten::relu"]
    assert graph.notes == ["0.0 % of the recorded calls found in the profile"]


def test_a_recording_of_a_gpu_is_whole() -> None:
    (graph,) = load_recording(H200).graphs
    assert graph.notes == ["100.0 % of the recorded calls found in the profile"]
    assert len(graph.kernels) == 116 and (graph.kernels.op >= 0).all() and (graph.calls.op >= -1).all()
    assert graph.device == "NVIDIA H200"
    assert np.isfinite(graph.ops.start).all() and (np.diff(graph.ops.start) >= 0).all()
    assert len(graph.indices) == 8 and {graph.ops[found.op].name for found in graph.indices} == {"aten::_embedding_bag"}
    (step,) = graph.steps
    assert step.name != "ProfilerStep#0", "the first one pays for the profiler's start"
    assert step.ms > 0 and len(graph.unprofiled.synced_ms) > 0


def rank(folder: Path, number: int, steps: dict[int, float], world: int = 2) -> None:
    """A rank on disk whose profiled steps take so many microseconds."""
    path = folder / f"rank-{number}"
    path.mkdir(parents=True)
    trace = Trace(number, world)
    for step, us in steps.items():
        with trace.step(step):
            with trace.op("aten::mm"):
                trace.launch("gemm")
            trace.now += us
    trace.write(path / files.PROFILE)
    files.write_structure(path, [Op("aten::mm")], {})
    facts = {"rank": number, "world": world, "device": "", "groups": {}, "synced_ms": [1.0], "back_to_back_ms": []}
    files.write_rank(path, {**facts, "slowdown": {"profile": None}})
    files.write_job(folder, {"world": world})


def test_all_ranks_are_shown_at_the_same_step(tmp_path: Path) -> None:
    rank(tmp_path, 0, {0: 900, 1: 100, 2: 200, 3: 900})
    rank(tmp_path, 1, {0: 900, 1: 900, 2: 300, 3: 900})
    job = load_recording(tmp_path)
    assert [graph.steps[0].name for graph in job.graphs] == ["ProfilerStep#1"] * 2, "median of the sums 1000, 500, 1800"


def test_only_the_ranks_asked_for_are_read(tmp_path: Path) -> None:
    rank(tmp_path, 0, {0: 10, 1: 10})
    rank(tmp_path, 1, {0: 10, 1: 10})
    (tmp_path / "rank-0" / files.OPS).write_bytes(b"damaged")
    job = load_recording(tmp_path, ranks=[1])
    assert [graph.rank for graph in job.graphs] == [1]
    assert job.world == 2 and job.missing == [0]
    with pytest.raises(ForetraceError, match="holds no rank that was asked for"):
        load_recording(tmp_path, ranks=[7])
    with pytest.raises(ForetraceError, match="no rank 7"):
        load(tmp_path, ranks=[1, 7])


def test_a_rank_that_was_not_recorded_is_missing_from_the_job(tmp_path: Path) -> None:
    rank(tmp_path, 1, {0: 10, 1: 10}, world=3)
    job = load_recording(tmp_path)
    assert (job.world, job.missing, [graph.world for graph in job.graphs]) == (3, [0, 2], [3])


def test_a_recording_without_a_profile_is_its_structure(tmp_path: Path) -> None:
    rank(tmp_path, 0, {0: 10}, world=1)
    (tmp_path / "rank-0" / files.PROFILE).unlink()
    (graph,) = load_recording(tmp_path).graphs
    assert names(graph) == ["aten::mm"] and not len(graph.kernels) and not graph.steps


def test_a_rank_under_another_name_is_refused(tmp_path: Path) -> None:
    rank(tmp_path, 0, {0: 10, 1: 10})
    shutil.copytree(tmp_path / "rank-0", tmp_path / "rank-1")
    with pytest.raises(ForetraceError, match="rank-1 is a recording of rank 0"):
        load_recording(tmp_path)


def test_a_profile_that_lacks_the_step_is_named(tmp_path: Path) -> None:
    rank(tmp_path, 0, {0: 10, 1: 10, 2: 10})
    rank(tmp_path, 1, {0: 10})
    with pytest.raises(ForetraceError, match=r"rank-1/profile\.json\.gz holds no ProfilerStep"):
        load_recording(tmp_path)


def test_folders_that_only_sound_like_ranks_are_passed_over(tmp_path: Path) -> None:
    rank(tmp_path, 0, {0: 10, 1: 10}, world=1)
    for name in ("rank-", "rank-x", "rank-²", "rank-0.old", "rank--1"):
        (tmp_path / name).mkdir()
    assert [graph.rank for graph in load_recording(tmp_path).graphs] == [0]


def test_a_recording_with_no_rank_at_all_says_so(tmp_path: Path) -> None:
    files.write_job(tmp_path, {"world": 1})
    with pytest.raises(ForetraceError, match="holds no rank"):
        load_recording(tmp_path)
    assert json.loads((tmp_path / "job.json").read_text())["format"] == "foretrace recording"


def test_a_compiled_kernel_shares_the_storages_of_the_calls_around_it(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        with trace.op("aten::mm"):
            trace.launch("gemm")
        with trace.op("triton_poi_fused_relu_0"):
            trace.launch("triton_poi_fused_relu_0")
    watched = structure("aten::mm")
    watched.ops = OpTable.of([Op("aten::mm", (Tensor((4,), "float32", storage=5),))])
    watched.storages = {5: Storage(5, 16, "cuda:0")}
    product = Op("aten::mm", (Tensor((4,), "float32", storage=91),))
    relu = Op("triton_poi_fused_relu_0", (Tensor((4,), "float32", storage=91), Tensor((4,), "float32", storage=5)))
    graph = with_times(watched, read(trace, tmp_path), Graph(OpTable.of([product, relu])))
    assert [t.storage for t in graph.ops[1].tensors] == [5, 6]


def test_ranks_of_another_job_are_refused(tmp_path: Path) -> None:
    rank(tmp_path, 1, {0: 10, 1: 10}, world=4)
    rank(tmp_path, 0, {0: 10, 1: 10}, world=2)
    with pytest.raises(ForetraceError, match="rank-1 is of a job of 4 ranks"):
        load_recording(tmp_path)
