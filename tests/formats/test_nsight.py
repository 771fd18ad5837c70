"""Nsight Systems reports that were exported as SQLite."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.formats.load import load_traces
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.graph.tables import ANNOTATION, CALL, COLLECTIVE, COMPUTE, COPY, LAUNCH, SYNC

PROCESS, OTHER = 77 << 24, 78 << 24
STRINGS = ["cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaDeviceSynchronize_v3020", "gemm<float>(int)", "gemm",
           "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "training step"]  # fmt: skip


def report(path: Path) -> Path:
    """A step with a GEMM, a copy, an all-reduce and a sync, and another process with one kernel; times in ns."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript("""
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT, busLocation TEXT NOT NULL);
            CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
                globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
                contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
                shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER,
                blockZ INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
                streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
            CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER, text TEXT,
                globalTid INTEGER, textId INTEGER, domainId INTEGER);
        """)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(STRINGS))
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (3, 'NVIDIA H200', '0000:00:1e.0')")
        db.execute("INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (3, 0, 77)")
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1763280000000000000, '', '')")
        tid = PROCESS + 5
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
            [(11_000, 14_000, tid, 1, 0), (21_000, 24_000, tid, 2, 0), (31_000, 33_000, tid, 3, 1),
             (40_000, 99_000, tid, 4, 2)],
        )  # fmt: skip
        shape = (4, 2, 1, 128, 1, 1)
        db.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 15)})",
            [(20_000, 50_500, 0, 1, 7, 1, PROCESS, 3, 4, *shape), (50_500, 60_500, 0, 1, 20, 2, PROCESS, 5, 5, *shape),
             (1_000, 2_000, 1, 1, 7, 1, OTHER, 3, 4, *shape)],
        )  # fmt: skip
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (61000, 66000, 0, 7, 3, ?, 4096, 2)", (PROCESS,))
        db.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, 0)",
            [(0, 100_000, 59, None, tid, 6),
             (10_000, 19_000, 59, "aten::mm, op_id = 12, sizes = [[2, 3], [3, 4]]", tid, None),
             (5_000, None, 34, "a mark", tid, None), (0, 50_000, 60, "across threads", tid, None)],
        )  # fmt: skip
        db.commit()
    return path


def test_kernels_calls_and_ranges_of_the_busiest_process_are_read(tmp_path: Path):
    graph = load_traces(report(tmp_path / "report.sqlite")).graphs[0]
    assert [graph.kernels.names[code] for code in graph.kernels.name] == [
        "gemm<float>(int)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy DtoH",
    ]  # fmt: skip
    assert graph.kernels.kind.tolist() == [COMPUTE, COLLECTIVE, COPY]
    assert graph.kernels.grid.tolist()[:2] == [8, 8] and graph.kernels.nbytes.tolist()[2] == 4096
    assert (graph.kernels.end - graph.kernels.start).tolist() == pytest.approx([30.5, 10.0, 5.0])
    assert graph.calls.kind.tolist() == [LAUNCH, LAUNCH, LAUNCH, SYNC]
    assert [(op.name, kind) for op, kind in zip(graph.ops, graph.ops.kind)] == [
        ("training step", ANNOTATION), ("aten::mm", CALL),
    ]  # fmt: skip
    assert graph.kernels.op.tolist() == [1, 0, 0]
    assert graph.device == "NVIDIA H200"
    assert graph.origin_ns == 1763280000000000000
    assert any("2 processes" in note for note in graph.notes)
    assert [one.kind for one in graph.collectives] == ["all_reduce"]
    assert measure_step(Job([graph])).device_active_ms == pytest.approx(0.0455)


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["step_5", "Step 6"], ["ProfilerStep#5", "ProfilerStep#6"]),
        (["iteration 0", "iteration 0"], ["ProfilerStep#0", "ProfilerStep#1"]),
        (["train_step:1", "batch size 64"], ["ProfilerStep#1"]),
        (["warm-up step", "step"], []),
    ],
)
def test_ranges_that_are_named_like_steps_are_steps(tmp_path: Path, names: list[str], steps: list[str]):
    with closing(sqlite3.connect(report(tmp_path / "report.sqlite"))) as db:
        ranges = [(0, 30_000, names[0], 5), (1_000, 2_000, "step 9", 5), (30_000, 70_000, names[1], 5),
                  (75_000, 76_000, "iter 3", 6)]  # fmt: skip
        inside = [one for one in ranges if steps or one[2] in names]
        db.executemany(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL, 0)",
            [(start, end, name, PROCESS + thread) for start, end, name, thread in inside],
        )
        db.commit()
    graph = load_traces(tmp_path / "report.sqlite").graphs[0]
    assert [step.name for step in graph.steps] == steps
    assert any("no step marks" in note for note in graph.notes) == (not steps)


def test_processes_that_launch_work_are_ranks(tmp_path: Path):
    with closing(sqlite3.connect(report(tmp_path / "report.sqlite"))) as db:
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (500, 600, 0, ?, 1, 0, 0)", (OTHER + 5,))
        db.commit()
    job = load_traces(tmp_path / "report.sqlite")
    assert [(graph.rank, graph.world, len(graph.kernels)) for graph in job.graphs] == [(0, 2, 3), (1, 2, 1)]


def test_a_packed_export_in_a_folder_is_found(tmp_path: Path):
    packed = gzip.compress(report(tmp_path / "report.sqlite").read_bytes())
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "rank3.sqlite.gz").write_bytes(packed)
    (graph,) = load_traces(tmp_path / "jobs").graphs
    assert isinstance(graph, Graph) and graph.rank == 3 and len(graph.kernels) == 3


def test_other_databases_are_refused_with_what_to_do(tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "some.sqlite")) as db:
        db.execute("CREATE TABLE rocpd_kernel_dispatch (start INTEGER)")
        db.commit()
    with pytest.raises(ForetraceError, match="without CUDA events of Nsight Systems"):
        load_traces(tmp_path / "some.sqlite")


def test_a_report_that_was_not_exported_says_how_to(tmp_path: Path):
    (tmp_path / "a.nsys-rep").write_bytes(b"QuadD report")
    with pytest.raises(ForetraceError, match=r"nsys export --type sqlite a\.nsys-rep"):
        load_traces(tmp_path / "a.nsys-rep")


@pytest.mark.parametrize("keep", [100, 3_000, 5_000, 9_000])
def test_a_damaged_export_is_one_line(tmp_path: Path, keep: int):
    whole = report(tmp_path / "report.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[:keep] + b"\xff" * 50)
    with pytest.raises(ForetraceError, match=r"cut\.sqlite"):
        load_traces(tmp_path / "cut.sqlite")


def test_names_that_are_no_text_are_one_line(tmp_path: Path):
    whole = report(tmp_path / "report.sqlite").read_bytes()
    (tmp_path / "report.sqlite").write_bytes(whole.replace(b"correlationId", b"correlati\xb5nId"))
    with pytest.raises(ForetraceError, match=r"report\.sqlite"):
        load_traces(tmp_path / "report.sqlite")


def test_a_report_whose_strings_have_no_ids_is_read(tmp_path: Path):
    with closing(sqlite3.connect(report(tmp_path / "report.sqlite"))) as db:
        db.executescript("DROP TABLE StringIds; CREATE TABLE StringIds (other TEXT); INSERT INTO StringIds VALUES (1)")
    assert len(load_traces(tmp_path / "report.sqlite").graphs[0].kernels.name) == 3
