"""Whole jobs from whatever files there are."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace import formats
from foretrace.formats.load import FORMATS, TraceFormat, load_traces
from foretrace.graph import ForetraceError, Graph, Job, Op, OpTable
from tests.traces import Trace, training_step


def job(folder: Path, world: int = 4, name: str = "rank{}.json.gz") -> Path:
    for rank in range(world):
        training_step(rank, world, late_us=100.0 * rank).write(folder / name.format(rank))
    return folder


def complaint(*paths: Path) -> str:
    with pytest.raises(ForetraceError) as caught:
        load_traces(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def ranks_of(found: Job) -> list[int]:
    return [graph.rank for graph in found.graphs]


@pytest.mark.parametrize(
    "name", ["rank{}.json.gz", "trace_{}.json", "rank-{}/kineto.json.gz", "host.10{}.1724066820235157909.pt.trace.json"]
)
def test_a_folder_of_ranks_is_a_job(tmp_path: Path, name: str) -> None:
    found = load_traces(job(tmp_path / "job", name=name))
    assert ranks_of(found) == [0, 1, 2, 3]
    assert (found.world, found.missing, found.notes) == (4, [], [])
    assert found.source == str(tmp_path / "job")
    assert len({graph.origin_ns for graph in found.graphs}) == 1


def test_a_glob_a_list_and_a_file_are_jobs(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    assert ranks_of(load_traces(folder / "rank[12]*")) == [1, 2]
    assert ranks_of(load_traces([folder / "rank3.json.gz", folder / "rank1.json.gz"])) == [1, 3]
    assert ranks_of(load_traces(str(folder / "rank2.json.gz"))) == [2]


def test_only_the_ranks_asked_for_are_read(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "rank3.json.gz").write_bytes(b"broken")
    found = load_traces(folder / "rank[0-2]*", ranks={0, 2})
    assert ranks_of(found) == [0, 2]
    with pytest.raises(ForetraceError, match="no trace of rank 9"):
        load_traces(folder / "rank[0-2]*", ranks={9})


def test_missing_ranks_are_said_not_refused(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "rank2.json.gz").unlink()
    found = load_traces(folder)
    assert found.missing == [2]
    assert found.notes == ["no trace of rank 2 of the 4 in the job"]


def test_ranks_come_from_names_where_traces_do_not_tell(tmp_path: Path) -> None:
    for rank in range(3):
        training_step().write(tmp_path / f"trace_{rank}.json")
    found = load_traces(tmp_path)
    assert ranks_of(found) == [0, 1, 2]
    assert found.world == 3


def test_a_number_in_the_name_of_a_lone_file_is_no_rank(tmp_path: Path) -> None:
    found = load_traces(training_step().write(tmp_path / "batch_64.json"))
    assert (ranks_of(found), found.world) == ([0], 1)


def test_other_files_may_lie_among_the_traces(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 2)
    (folder / "measured.json").write_text('{"synced_ms": 3.5}')
    (folder / "list.json").write_text("[1, 2]")
    (folder / "notes.txt").write_text("hello")
    assert ranks_of(load_traces(folder)) == [0, 1]


def test_two_traces_of_one_rank_are_two_jobs(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", 2)
    shutil.copy(folder / "rank0.json.gz", folder / "again.json.gz")
    message = complaint(folder)
    assert "both of rank 0" in message
    assert "again.json.gz" in message


def test_jobs_of_different_sizes_are_not_mixed(tmp_path: Path) -> None:
    training_step(0, 2).write(tmp_path / "a.json")
    training_step(1, 4).write(tmp_path / "b.json")
    assert "of a job of 2 ranks" in complaint(tmp_path)


def test_traces_taken_at_different_times_are_not_mixed(tmp_path: Path) -> None:
    training_step(0, 2).write(tmp_path / "a.json")
    training_step(1, 2, start=3600e6).write(tmp_path / "b.json")
    assert "s after" in complaint(tmp_path)


def test_different_steps_are_not_mixed(tmp_path: Path) -> None:
    training_step(0, 2).write(tmp_path / "a.json")
    later = training_step(1, 2, start=3e6)
    later.events[-1]["name"] = "ProfilerStep#9"
    later.write(tmp_path / "b.json")
    assert "s after" in complaint(tmp_path)


def test_clocks_a_few_seconds_apart_are_one_job(tmp_path: Path) -> None:
    training_step(0, 2).write(tmp_path / "a.json")
    training_step(1, 2, start=3e6).write(tmp_path / "b.json")
    found = load_traces(tmp_path)
    assert "clocks of the ranks differ by 2000.000 ms" in found.notes[0]


def test_a_broken_rank_is_named(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    whole = (folder / "rank2.json.gz").read_bytes()
    (folder / "rank2.json.gz").write_bytes(whole[: len(whole) // 2])
    assert str(folder / "rank2.json.gz") in complaint(folder)
    (folder / "rank2.json.gz").write_bytes(b"")
    assert "is empty (0 bytes)" in complaint(folder)


@pytest.mark.parametrize(
    "content", [b'{"a": 1}', b"hello", b"[1, 2]", b"\x00" * 100, b'{"a": "' + b"x" * 100_000 + b'"}']
)
def test_a_file_of_another_tool_says_what_would_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    message = complaint(tmp_path / "a.json")
    assert "a.json is no trace that Foretrace reads" in message
    assert "torch.profiler" in message


@pytest.mark.parametrize("name", ["tables.csv", "tables.yaml"])
def test_a_list_of_tables_is_for_other_subcommands(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("name,rows,dim\nusers,1000,64\n")
    message = complaint(tmp_path / name)
    assert f"foretrace shard {tmp_path / name} --world N" in message and "foretrace check-table" in message


def test_an_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "traces.tar.gz").write_bytes(gzip.compress(b"rank0.json" + b"\x00" * 500))
    assert "unpack it" in complaint(tmp_path / "traces.tar.gz")


def test_an_empty_trace_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"traceEvents": []}')
    assert "holds no events" in complaint(tmp_path / "a.json")


def test_an_empty_folder_and_a_glob_of_nothing_say_so(tmp_path: Path) -> None:
    assert "holds no traces" in complaint(tmp_path)
    assert "no file matches" in complaint(tmp_path / "*.json")
    assert "does not exist" in complaint(tmp_path / "a.json")


def test_traces_further_down_are_found_where_one_folder_has_them(tmp_path: Path) -> None:
    job(tmp_path / "run/a/b/traces", 2)
    (tmp_path / "run/a/c/d").mkdir(parents=True)
    (tmp_path / "run/a/c/d/config.json").write_text('{"a": 1}')
    assert ranks_of(load_traces(tmp_path / "run")) == [0, 1]
    job(tmp_path / "run/a/c/more", 2)
    message = complaint(tmp_path / "run")
    assert str(tmp_path / "run/a/b/traces") in message and str(tmp_path / "run/a/c/more") in message


@pytest.mark.parametrize(
    "names",
    [
        ("host0_100.170.pt.trace.json", "host1_101.170.pt.trace.json"),
        ("tp0_pp0.json", "tp1_pp0.json"),
        ("n0/t.json", "n1/t.json"),
    ],
)
def test_traces_that_do_not_tell_their_rank_are_not_said_to_be_of_one(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        training_step().write(tmp_path / name)
    message = complaint(tmp_path)
    assert "neither" in message and "tells which rank it is of" in message and "rank-0…, rank-1…" in message
    assert "both of rank" not in message


def test_a_benchmark_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "run.py").touch()
    (tmp_path / "calls.json").write_text("{}")
    with pytest.raises(ForetraceError, match="is a benchmark") as caught:
        load_traces(tmp_path)
    assert f"foretrace replay {tmp_path}" in str(caught.value)


def test_an_execution_trace_next_to_a_profile_gives_its_ops_their_arguments(shared: Path) -> None:
    (graph,) = load_traces(shared / "traces/h200/dlrm_default_b512").graphs
    tensors = [tensor for op in graph.ops for tensor in op.tensors]
    assert sum(tensor.id >= 0 for tensor in tensors) > 500
    assert len(graph.kernels) == 116


def test_every_published_job_is_whole(shared: Path) -> None:
    for name, world in (("megatron_tp8_8xA100", 8), ("dlrm_8xV100", 8), ("megatron_tp2_2xV100", 2)):
        found = load_traces(shared / "public" / name)
        assert (ranks_of(found), found.missing) == (list(range(world)), [])


def test_single_ranks_of_several_jobs_are_not_mixed(shared: Path) -> None:
    assert "Give the traces of one job only" in complaint(shared / "public/single_rank")


SMALL = Trace(0, 2)
with SMALL.op("aten::mm"):
    SMALL.launch("gemm")
TEXT = SMALL.text()


@settings(max_examples=200)
@given(st.integers(0, len(TEXT)), st.binary(max_size=8), st.integers(0, 20))
def test_damaged_files_give_a_job_or_one_clear_error(tmp_path: Path, at: int, new: bytes, dropped: int) -> None:
    (tmp_path / "rank0.json").write_bytes(TEXT[:at] + new + TEXT[at + dropped :])
    try:
        found = load_traces(tmp_path)
    except ForetraceError as error:
        assert str(tmp_path) in str(error)
    else:
        assert len(found.graphs) == 1


@settings(max_examples=100)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_any_json_is_a_job_or_one_clear_error(tmp_path: Path, content: object) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": content}))
    with pytest.raises(ForetraceError):
        load_traces(tmp_path)


def read_own_format(path: Path) -> Graph:
    return Graph(OpTable.of([Op(name) for name in json.loads(path.read_text())["ownCalls"]]), source=str(path))


def test_a_format_is_a_reader_and_an_entry_in_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = TraceFormat(__name__, "read_own_format", (".json",), key="ownCalls")
    monkeypatch.setitem(FORMATS, "own trace", own)
    (tmp_path / "rank3.json").write_text('{"version": 1, "ownCalls": ["aten::mm"]}')
    (graph,) = load_traces(tmp_path).graphs
    assert (graph.rank, graph.ops[0].name) == (3, "aten::mm")


@pytest.mark.parametrize("name", dir(formats))
def test_what_the_package_exports_is_there(name: str) -> None:
    assert getattr(formats, name) is not None or name.startswith("__")


def test_traces_that_say_their_rank_and_no_world_are_of_a_job_that_may_have_more(tmp_path: Path) -> None:
    for name, rank in (("b", 0), ("a", 2)):
        trace = training_step()
        trace.head["distributedInfo"] = {"rank": rank}
        trace.write(tmp_path / f"{name}.json")
    job = load_traces(tmp_path)
    assert [graph.rank for graph in job.graphs] == [0, 2]
    assert "no trace of rank 1 of the 3 in the job, which may have more" in job.notes
