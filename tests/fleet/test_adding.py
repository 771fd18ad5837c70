"""Adding recordings to a store."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from foretrace.errors import ForetraceError
from foretrace.fleet import adding
from foretrace.fleet.adding import Task, add_recordings, reduce_task
from foretrace.fleet.recordings import find_recordings
from foretrace.fleet.store import INDEX, Store
from tests.processes import started, wait_until

RECORDING = Path(__file__).parents[1] / "data/h200/dlrm_default_b512"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "fleet", create=True)


def test_folders_are_searched_for_recordings_and_traces(traces):
    folder = traces(one=20.0, two=30.0)
    (folder / "deep" / "inside").mkdir(parents=True)
    (folder / "deep" / "inside" / "trace.json").write_bytes((folder / "one" / "trace.json").read_bytes())
    assert [found.name for found in find_recordings(str(folder))] == ["inside", "one", "two"]
    assert [found.name for found in find_recordings(str(RECORDING))] == [RECORDING.name]


def test_traces_of_several_jobs_may_lie_in_one_folder(traces, tmp_path):
    text = (traces(one=20.0) / "one/trace.json").read_text()
    folder = tmp_path / "mixed"
    (folder / "deeper").mkdir(parents=True)
    for name in (
        "bert.kineto.json",
        "dlrm.rank0.json",
        "dlrm.rank1.json",
        "deeper/trace.json",
        "io_0.json",
        "io_4.json",
    ):
        (folder / name).write_text(text)
    for rank in (0, 1):
        about = {"distributedInfo": {"rank": rank, "world_size": 2}}
        (folder / f"host_{rank}7.1234.pt.trace.json").write_text(json.dumps(about | json.loads(text)))
    (folder / "jobs.json").write_text("{}")
    assert [found.name for found in find_recordings(str(folder))] == [
        "bert.kineto.json", "dlrm.rank*.json", "host_*7.1234.pt.trace.json", "io_0.json", "io_4.json", "deeper",
    ]  # fmt: skip


def test_what_lies_beside_the_traces_of_one_step_is_no_recording(traces):
    folder = traces(one=20.0) / "one"
    (folder / "measured.json").write_text('{"synced_ms": [1.0]}')
    assert [found.path for found in find_recordings(str(folder))] == [str(folder)]


def test_ranks_in_a_folder_with_others_are_one_recording_and_have_copies(store, traces, tmp_path):
    text = (traces(one=20.0) / "one/trace.json").read_text()
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name in ("a.rank0.json", "a.rank1.json", "b.json"):
        (folder / name).write_text(text)
    done = add_recordings(store, [str(folder)], copy=True, workers=1)
    assert done.added == 2 and not done.broken
    assert {record.name: record.world for record in store.records()} == {"a.rank*.json": 2, "b.json": 1}
    assert sorted(len(list(one.iterdir())) for one in (store.path / "originals").iterdir()) == [1, 2]
    assert add_recordings(store, [str(folder)], workers=1).there == 2


def test_adding_twice_adds_nothing(store, traces):
    folder = traces(one=20.0, two=30.0)
    first = add_recordings(store, [str(folder)], workers=1)
    before = (store.path / INDEX).read_bytes()
    again = add_recordings(store, [str(folder)], workers=1)
    assert (first.added, again.added, again.there) == (2, 0, 2)
    assert (store.path / INDEX).read_bytes() == before


def test_the_same_content_in_another_place_is_there_already(store, traces, tmp_path):
    folder = traces(one=20.0)
    add_recordings(store, [str(folder)], workers=1)
    (folder / "one").rename(tmp_path / "moved")
    again = add_recordings(store, [str(tmp_path / "moved")], workers=1)
    assert (again.added, again.there) == (0, 1)


def test_broken_recordings_are_listed_and_the_others_added(store, traces):
    folder = traces(one=20.0, two=30.0)
    (folder / "two" / "trace.json").write_text('{"traceEvents": [{"ph"')
    (folder / "three").mkdir()
    (folder / "three" / "trace.json").write_text("nothing")
    done = add_recordings(store, [str(folder)], workers=1)
    assert done.added == 1 and [Path(broken.path).name for broken in done.broken] == ["three", "two"]


def test_processes_and_one_process_make_the_same_index(tmp_path, traces):
    folder = traces(**{f"job{number}": 20.0 + number for number in range(20)})
    indexes = []
    for workers in (1, 2):
        store = Store.open(tmp_path / f"by-{workers}", create=True)
        assert add_recordings(store, [str(folder)], workers=workers).added == 20
        indexes.append((store.path / INDEX).read_bytes())
    assert indexes[0] == indexes[1]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_ray_makes_the_same_index(tmp_path, traces):
    folder = traces(**{f"job{number}": 20.0 + number for number in range(20)})
    store, other = (Store.open(tmp_path / name, create=True) for name in ("alone", "on-ray"))
    add_recordings(store, [str(folder)], workers=1)
    add_recordings(other, [str(folder)], ray="local", workers=2)
    assert (store.path / INDEX).read_bytes() == (other.path / INDEX).read_bytes()


def test_a_killed_add_loses_nothing_and_goes_on(tmp_path, traces, monkeypatch):
    folder = traces(**{f"job{number:03d}": 20.0 + number / 10 for number in range(60)})
    store = tmp_path / "fleet"
    add = "from foretrace.fleet import adding; adding.PART_RECORDS = 8; from foretrace.cli.main import main; main()"
    command = [sys.executable, "-c", add, "fleet", "add", str(store), str(folder), "--workers", "1"]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: list((store / "parts").glob("[0-9]*.parquet")), "no part is written")
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = len(Store.open(store).records())
    again = add_recordings(Store.open(store), [str(folder)], workers=1)
    assert kept and again.there == kept and again.added == 60 - kept
    assert len(Store.open(store).records()) == 60


def test_what_takes_long_is_written_before_a_part_is_full(store, traces, monkeypatch):
    monkeypatch.setattr(adding, "PART_S", 0.0)
    monkeypatch.setattr(adding, "PER_TASK", 1)
    sizes, add = [], store.add
    monkeypatch.setattr(store, "add", lambda records: (sizes.append(len(records)), add(records)))
    add_recordings(store, [str(traces(one=20.0, two=30.0))], workers=1)
    assert sizes == [1, 1, 0] and len(store.records()) == 2


def test_two_that_add_at_once_lose_nothing(tmp_path, traces):
    folder = traces(**{f"job{number:03d}": 20.0 + number / 10 for number in range(24)})
    store = tmp_path / "fleet"
    Store.open(store, create=True)
    halves = [[str(folder / f"job{number:03d}") for number in range(first, 24, 2)] for first in (0, 1)]
    command = [sys.executable, "-m", "foretrace", "fleet", "add", str(store)]
    with started([*command, *halves[0]]) as one, started([*command, *halves[1]]) as other:
        assert one.wait() == other.wait() == 0
    assert len(Store.open(store).records()) == 24


def test_labels_of_a_table_come_before_those_for_all(store, traces):
    folder = traces(one=20.0, two=30.0)
    add_recordings(store, [str(folder)], {"team": "ads"}, {"two": {"team": "feed", "gpu_hours": "8"}}, workers=1)
    assert [(one.name, one.team, one.gpu_hours) for one in sorted(store.records(), key=lambda one: one.name)] == [
        ("one", "ads", None), ("two", "feed", 8.0),
    ]  # fmt: skip


def test_other_labels_for_a_recording_in_the_store_are_refused_or_replace_them(store, traces):
    folder = str(traces(one=20.0))
    add_recordings(store, [folder], {"team": "ads"}, workers=1)
    with pytest.raises(ForetraceError, match=r"with team=ads, and now team=feed is given.*--relabel"):
        add_recordings(store, [folder], {"team": "feed"}, workers=1)
    done = add_recordings(store, [folder], {"team": "feed"}, relabel=True, workers=1)
    assert done.relabelled == 1 and [one.team for one in store.records()] == ["feed"]


def test_copies_outlive_their_originals(store, traces):
    folder = traces(one=20.0)
    add_recordings(store, [str(folder)], copy=True, workers=1)
    (record,) = store.records()
    copied = store.path / "originals" / record.id / "trace.json"
    assert json.loads(copied.read_text()) == json.loads((folder / "one" / "trace.json").read_text())


@pytest.mark.skipif(find_spec("fsspec") is None, reason="fsspec is not installed")
def test_addresses_of_object_stores_are_read(store, traces):
    folder = traces(one=20.0, two=30.0)
    done = add_recordings(store, [f"file://{folder}"], workers=1)
    assert done.added == 2 and not done.broken
    assert add_recordings(store, [f"file://{folder}"], workers=1).there == 2
    text = (folder / "one/trace.json").read_text()
    for name in ("a.rank0.json", "a.rank1.json", "b.json"):
        (folder / "two" / name).write_text(text)
    (folder / "two/trace.json").unlink()
    assert add_recordings(store, [f"file://{folder}/two"], workers=1).added == 2
    assert {record.world for record in store.records()} == {1, 2}
    with pytest.raises(ForetraceError, match="does not exist"):
        add_recordings(store, [f"file://{folder}/none"], workers=1)


def test_what_was_read_does_not_stay_in_memory(traces):
    (found, *_) = find_recordings(str(traces(one=20.0)))
    task = Task((found,), frozenset(), "", "h200")

    def graphs() -> int:
        return sum(type(one).__name__ in ("Graph", "Workings", "PartTimes") for one in gc.get_objects())

    gc.collect()
    gc.disable()  # as the command line does
    try:
        before = graphs()
        reduce_task(task)
        assert graphs() == before
    finally:
        gc.enable()
