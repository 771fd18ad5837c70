from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from foretrace.formats.nccl_tests import read_nccl_tests
from foretrace.graph import ForetraceError

RANK = "#  Rank {rank:2} Group  0 Pid  1056{rank} on {host} device  {rank} [0000:06:00] NVIDIA A100-SXM4-80GB\n"
SETTINGS = "# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5\n#\n# Using devices\n"
COLUMNS = "#  size   count   type   redop    root   time   algbw   busbw #wrong   time   algbw   busbw #wrong\n"
OLD_COLUMNS = COLUMNS.replace("root", "")
UNITS = "#   (B)  (elements)                     (us)  (GB/s)  (GB/s)          (us)  (GB/s)  (GB/s)\n"
ROWS = (
    "        0        0   float     sum      -1   34.05    0.00    0.00      0   35.20    0.00    0.00      0\n"
    "host:3442:3442 [0] NCCL INFO Launch mode Parallel\n"
    "     1024      256   float     sum      -1   36.07    0.03    0.05      0   35.77    0.03    0.05      0\n"
    "  1048576   262144   float     sum      -1   74.78   14.02   24.54    N/A   76.17   13.77   24.09    N/A\n"
)
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 68.4048\n#\n"
ANNOUNCED = "# Collective test starting: all_reduce_perf\n"


def ranks(count, hosts=("node-1",)):
    return "".join(RANK.format(rank=rank, host=hosts[rank * len(hosts) // count]) for rank in range(count))


@pytest.fixture
def log(tmp_path):
    def write(text, name="nccl.log"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_a_table_gives_its_collective_ranks_nodes_device_and_times(log):
    text = ANNOUNCED + SETTINGS + ranks(16, ("node-1", "node-2")) + "#\n" + COLUMNS + UNITS + ROWS + END
    (table,) = read_nccl_tests(log(text))
    assert (table.kind, table.ranks, table.nodes, table.device) == ("all_reduce", 16, 2, "NVIDIA A100-SXM4-80GB")
    assert table.rows == [(1024, 36.07), (1048576, 74.78)]


def test_logs_of_old_versions_have_no_root_and_no_announcement(log):
    rows = ROWS.replace("sum      -1", "sum")
    (table,) = read_nccl_tests(log(SETTINGS + ranks(8) + OLD_COLUMNS + UNITS + rows, "reducescatter.log"))
    assert (table.kind, table.rows[-1]) == ("reduce_scatter", (1048576, 74.78))


def test_the_command_line_names_the_collective_too(log):
    text = "$ mpirun -np 8 ./build/alltoall_perf -b 8 -e 128M\n" + SETTINGS + ranks(8) + COLUMNS + ROWS
    assert read_nccl_tests(log(text))[0].kind == "all_to_all"


def test_what_mpirun_puts_before_each_line_is_ignored(log):
    text = ANNOUNCED + SETTINGS + ranks(2) + COLUMNS + ROWS
    prefixed = "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines())
    assert read_nccl_tests(log(prefixed))[0].rows == [(1024, 36.07), (1048576, 74.78)]


def test_several_tests_in_one_log_are_several_tables(log):
    one = ANNOUNCED + SETTINGS + ranks(8) + COLUMNS + ROWS + END
    other = one.replace("all_reduce", "sendrecv").replace("74.78", "11.5")
    first, second = read_nccl_tests(log(one + other))
    assert (first.kind, second.kind) == ("all_reduce", "send")
    assert (first.ranks, second.ranks, second.rows[-1][1]) == (8, 8, 11.5)


DAMAGED = ANNOUNCED + SETTINGS + ranks(8) + COLUMNS.replace("time", "time?") + ROWS + END


@pytest.mark.parametrize(
    "text", ["hello", ANNOUNCED + SETTINGS + ranks(8) + COLUMNS + END, "# nThread 1 nGpus 8", DAMAGED]
)
def test_a_log_without_a_table_is_refused(log, text):
    with pytest.raises(ForetraceError, match=r"nccl\.log holds no table of nccl-tests"):
        read_nccl_tests(log(text))


def test_a_log_that_does_not_name_its_collective_is_refused_with_advice(log):
    with pytest.raises(ForetraceError, match=r"does not name its collective. Put its name into the file's"):
        read_nccl_tests(log(SETTINGS + ranks(8) + COLUMNS + ROWS))


def test_a_log_that_names_no_ranks_is_refused(log):
    with pytest.raises(ForetraceError, match="names 1 ranks"):
        read_nccl_tests(log(ANNOUNCED + SETTINGS + ranks(1) + COLUMNS + ROWS))


def test_a_line_that_was_cut_is_left_out(log):
    text = ANNOUNCED + SETTINGS + ranks(8) + COLUMNS + ROWS + "     2097152        524288     float     sum"
    assert len(read_nccl_tests(log(text))[0].rows) == 2


@pytest.mark.parametrize("cells", ["9" * 400 + " 256", "1024 256"])
@pytest.mark.parametrize("time", ["1e400", "inf", "nan", "1e300"])
def test_figures_that_no_test_prints_are_left_out(log, cells, time):
    odd = f"{cells} float sum -1 {time} 0 0 0\n" + f"{'9' * 400} 256 float sum -1 30.0 0 0 0\n"
    (table,) = read_nccl_tests(log(ANNOUNCED + SETTINGS + ranks(2) + COLUMNS + ROWS + odd))
    assert table.rows == [(1024, 36.07), (1048576, 74.78)]


def test_a_log_without_end_is_refused(log, monkeypatch):
    with pytest.raises(ForetraceError, match="/dev/zero is a device: reading it may never end"):
        read_nccl_tests(Path("/dev/zero"))
    monkeypatch.setattr("foretrace.formats.nccl_tests.MAX_LOG_BYTES", 1 << 20)
    with pytest.raises(ForetraceError, match=r"too large for a log of nccl-tests \(more than 1 MB\)"):
        read_nccl_tests(log("x" * ((1 << 20) + 1)))


def test_a_log_that_is_absent_or_truncated_is_refused(log, tmp_path):
    with pytest.raises(ForetraceError, match="does not exist"):
        read_nccl_tests(tmp_path / "absent")
    path = log("")
    path.write_bytes(gzip.compress(b"log" * 999)[:-9])
    with pytest.raises(ForetraceError, match="not a sound gzip file"):
        read_nccl_tests(path)
