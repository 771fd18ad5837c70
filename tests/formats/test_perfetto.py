"""Jobs written for Perfetto, and read back as profiler traces."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrace as ft
from foretrace.formats.execution_trace import read_execution_trace
from foretrace.formats.join import join_traces
from foretrace.formats.kineto import read_kineto
from foretrace.formats.perfetto import FIRST_STREAM, write_perfetto
from foretrace.graph import ForetraceError, Graph, Job
from tests.formats.execution_traces import step, trace, write
from tests.formats.jobs import EPOCH_NS, job, rank


def written(folder: Path, what: Job, name: str = "trace.json") -> dict[str, Any]:
    write_perfetto(what, folder / name)
    text = (folder / name).read_bytes()
    content: dict[str, Any] = json.loads(gzip.decompress(text) if name.endswith(".gz") else text)
    return content


def slices(content: dict[str, Any], **want: Any) -> list[dict[str, Any]]:
    events = (event for event in content["traceEvents"] if event["ph"] == "X")
    return [event for event in events if all(event[key] == value for key, value in want.items())]


def same(a: Graph, b: Graph) -> None:
    for table, columns in (
        ("ops", ("start", "end", "parent", "kind")),
        ("calls", ("start", "end", "op", "kind")),
        ("kernels", ("start", "end", "stream", "kind", "call", "op", "nbytes", "grid", "block")),
    ):
        mine, theirs = getattr(a, table), getattr(b, table)
        assert [mine.names[code] for code in mine.name] == [theirs.names[code] for code in theirs.name]
        for column in columns:
            ours, read = getattr(mine, column), getattr(theirs, column)
            assert read == pytest.approx(ours, abs=1e-3), (table, column)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_reading_it_back_gives_the_same_kernels_calls_and_ops(tmp_path: Path, name: str):
    graph = rank(1, world=4)
    write_perfetto(Job([graph]), tmp_path / name)
    back = read_kineto(tmp_path / name)
    same(graph, back)
    assert (back.rank, back.world, back.device, back.origin_ns) == (1, 4, "NVIDIA H200", EPOCH_NS)
    assert [c for c in back.collectives if c.kernel >= 0] == graph.collectives
    assert back.steps == graph.steps
    assert [t.shape for t in back.ops[1].tensors] == [(64, 64), (64, 64)]
    assert [t.dtype for t in back.ops[4].tensors] == ["bfloat16"]


def test_a_timeline_of_several_ranks_is_read_as_these(tmp_path: Path):
    recorded = Path(__file__).parents[2] / "examples" / "dlrm-4-ranks"
    write_perfetto(ft.load(recorded), tmp_path / "job.json")
    back = ft.observe(tmp_path / "job.json")
    assert [row.rank for row in back.ranks] == [0, 1, 2, 3]
    assert [row.rank for row in back.stragglers] == [2]


def test_ranks_are_processes_with_threads_and_streams_as_tracks(tmp_path: Path):
    content = written(tmp_path, job())
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"}
    assert names[1, 7] == "thread 7"
    assert names[1, FIRST_STREAM + 7] == "stream 7"
    processes = [e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"]
    assert processes == ["rank 0 (NVIDIA H200)", "rank 1 (NVIDIA H200)"]
    assert {e["tid"] for e in slices(content, cat="kernel", pid=0)} == {FIRST_STREAM + 7, FIRST_STREAM + 20}


def test_ranks_with_different_origins_are_put_on_one_clock(tmp_path: Path):
    late = rank(1)
    late.origin_ns += 250_500
    content = written(tmp_path, Job([rank(0), late]))
    first, second = (slices(content, name="aten::mm", pid=number)[0] for number in (0, 1))
    assert second["ts"] - first["ts"] == 250.5


def test_times_before_the_origin_are_written_as_times_after_the_first(tmp_path: Path):
    write_perfetto(Job([rank(0).shifted(-1000.0)]), tmp_path / "trace.json")
    back = read_kineto(tmp_path / "trace.json")
    same(rank(0), back)
    assert back.origin_ns == EPOCH_NS


def test_arrows_go_from_launch_to_kernel(tmp_path: Path):
    events = written(tmp_path, Job([rank(0)]))["traceEvents"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == len(ends) == 3
    assert sorted((starts[i]["ts"], ends[i]["ts"]) for i in starts) == [(20.0, 30.0), (70.0, 140.0), (105.0, 460.0)]


def test_names_are_kept_as_they_are(tmp_path: Path):
    assert len(slices(written(tmp_path, job()), name='a "name" <b>')) == 2


def test_a_structure_without_times_has_nothing_to_show(tmp_path: Path):
    structure = read_execution_trace(write(tmp_path / "et.json", trace(step())))
    with pytest.raises(ForetraceError, match="no times to show"):
        write_perfetto(Job([structure], source="et.json"), tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()


def test_an_earlier_file_survives_a_writer_that_fails(tmp_path: Path):
    write_perfetto(Job([rank(0)]), tmp_path / "trace.json")
    earlier = (tmp_path / "trace.json").read_text()
    graph = rank(0)
    graph.ops.detail = lambda row: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        write_perfetto(Job([graph]), tmp_path / "trace.json")
    assert [p.read_text() for p in tmp_path.iterdir()] == [earlier]


@pytest.mark.parametrize("stem", ["traces/h200/resnet50_b64_fp32/", "public/megatron_tp8_8xA100/rank2."])
def test_a_real_trace_comes_back(shared: Path, tmp_path: Path, stem: str):
    graph = read_kineto(shared / f"{stem}kineto.json.gz")
    joined = join_traces(read_execution_trace(shared / f"{stem}et.json.gz"), graph)
    write_perfetto(Job([joined]), tmp_path / "trace.json.gz")
    back = read_kineto(tmp_path / "trace.json.gz")
    same(graph, back)
    assert np.array_equal(back.ops.phase, graph.ops.phase)
    assert [(c.kind, c.nbytes) for c in back.collectives] == [(c.kind, c.nbytes) for c in joined.collectives]
