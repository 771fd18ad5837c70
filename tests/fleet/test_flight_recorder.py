"""Why a job hangs, from flight-recorder dumps."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from foretrace.errors import ForetraceError
from foretrace.fleet.flight_recorder import find_hang

GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def call(number: int, state: str = "completed", kind: str = "all_reduce", group: str = "0") -> dict[str, object]:
    return {
        "process_group": (group, "default_pg"), "collective_seq_id": number, "profiling_name": f"nccl:{kind}",
        "input_sizes": [[1024]], "state": state, "time_created_ns": 1000 + number, "is_p2p": False,
    }  # fmt: skip


def dumps(folder: Path, entries: dict[int, list[dict[str, object]]], groups=GROUPS, text: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for rank, calls in entries.items():
        dump = {"version": "2.4", "pg_config": groups, "entries": calls}
        data = json.dumps(dump).encode() if text else pickle.dumps(dump, 2)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder


@pytest.mark.parametrize("text", [False, True])
def test_the_rank_that_never_came_is_named(tmp_path, text):
    waits = [call(1), call(2, "scheduled")]
    folder = dumps(tmp_path / "d", {0: waits, 1: waits, 2: [call(1)], 3: waits}, text=text)
    hang = find_hang([folder])
    assert [one.rank for one in hang.culprits] == [2] and "never called all_reduce number 2" in hang.culprits[0].why
    (stuck,) = hang.collectives
    assert (stuck.waiting, stuck.missing, stuck.number) == ([0, 1, 3], [2], 2)


def test_a_rank_that_waits_elsewhere_is_not_the_cause(tmp_path):
    groups = {**GROUPS, "1": {"name": "1", "ranks": "[2, 3]"}}
    waits = [call(2, "scheduled")]
    elsewhere = [call(1), call(7, "started", "all_gather", "1")]
    hang = find_hang([dumps(tmp_path / "d", {0: waits, 1: waits, 2: elsewhere, 3: [call(1)]}, groups)])
    assert [one.rank for one in hang.culprits] == [3]
    assert {one.group: one.missing for one in hang.collectives} == {"0": [2, 3], "1": [3]}


def test_a_rank_that_called_something_else_is_named(tmp_path):
    waits = [call(5, "started")]
    hang = find_hang([dumps(tmp_path / "d", {0: waits, 1: waits, 2: [call(5, "started", "broadcast")], 3: waits})])
    assert [one.rank for one in hang.culprits] == [2] and "called broadcast" in hang.culprits[0].why


def test_a_rank_without_a_dump_is_named(tmp_path):
    waits = [call(2, "scheduled")]
    hang = find_hang([dumps(tmp_path / "d", {0: waits, 1: waits, 3: waits})])
    assert [(one.rank, one.why) for one in hang.culprits] == [
        (2, "left no dump, and did not come to all_reduce number 2")
    ]
    assert hang.world == 4 and hang.notes == ["no dump of rank 2"]


def test_collectives_that_left_the_buffer_are_not_missing(tmp_path):
    waits = [call(9), call(10, "scheduled")]
    hang = find_hang([dumps(tmp_path / "d", {0: [call(8), *waits], 1: waits, 2: waits, 3: [call(9)]})])
    assert [one.missing for one in hang.collectives] == [[3]]


def test_a_job_that_does_not_hang_has_no_culprit(tmp_path):
    done = [call(1), call(2)]
    hang = find_hang([dumps(tmp_path / "d", dict.fromkeys(range(4), done))])
    assert not hang.culprits and not hang.collectives


class Harmful:
    def __reduce__(self):
        return os.mkdir, (os.environ["FORETRACE_HARM"],)


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path, monkeypatch):
    monkeypatch.setenv("FORETRACE_HARM", str(tmp_path / "harm"))
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [Harmful()]}))
    with pytest.raises(ForetraceError, match=r"is no flight-recorder dump \(UnpicklingError: it names posix\.mkdir"):
        find_hang([path])
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[1]", b"\x80\x02N.", b"nothing", b'{"entries": [{"is_p2p": 0, "seq_id": "x"}]}',
        b'{"entries": [{"is_p2p": 0, "seq_id": Infinity}]}', b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        b'{"entries": [], "pg_config": {"0": {"ranks": "' + b"[" * 100_000 + b'"}}}',
    ],
)  # fmt: skip
def test_damaged_dumps_are_one_line(tmp_path, data):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(ForetraceError, match=r"dump"):
        find_hang([path])


def test_a_number_in_a_damaged_pickle_takes_no_memory_and_a_list_of_lists_no_time(tmp_path):
    nested: object = 1
    for _ in range(100):
        nested = [nested, nested]
    waits = [{**call(2, "scheduled"), "input_sizes": nested}]
    folder = dumps(tmp_path / "d", {0: waits, 1: [call(1)]}, {})
    assert len(find_hang([folder]).collectives[0].sizes) <= 80
    huge = pickle.PROTO + b"\x02}" + pickle.LONG_BINPUT + b"\xff\xff\xff\x7f" + b"."
    (folder / "nccl_trace_rank_2").write_bytes(huge)
    with pytest.raises(ForetraceError, match="it has no entries"):
        find_hang([folder])
