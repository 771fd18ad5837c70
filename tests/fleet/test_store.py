"""The store of a fleet on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from foretrace.errors import ForetraceError
from foretrace.fleet.record import StepRecord
from foretrace.fleet.store import INDEX, STORE, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "fleet", create=True)


def names(store: Store) -> list[str]:
    return [record.name for record in store.records()]


def test_the_same_records_make_the_same_index_in_whatever_order_they_come(tmp_path):
    records = [StepRecord(id=f"{number:03d}", name=f"job {number}", gpu_hours=number + 1.0) for number in range(40)]
    written = []
    for place, order in enumerate((records, records[::-1])):
        store = Store.open(tmp_path / str(place), create=True)
        for first in range(0, 40, 7 + place):
            store.add(order[first : first + 7 + place])
        store.merge()
        written.append((store.path / INDEX).read_bytes())
    assert written[0] == written[1]


def test_what_is_not_merged_yet_is_read_all_the_same(store):
    store.add([StepRecord(id="a", name="one")])
    store.merge()
    store.add([StepRecord(id="b", name="two")])
    assert names(store) == ["one", "two"]


def test_a_process_that_ends_between_the_index_and_the_removal_of_parts_leaves_no_record_twice(store, monkeypatch):
    store.add([StepRecord(id="a", name="one"), StepRecord(id="b", name="two")])
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    store.merge()
    monkeypatch.undo()
    assert names(store) == ["one", "two"] and len(store._parts()) == 1
    store.merge()
    assert names(store) == ["one", "two"] and not store._parts()


def test_an_unfinished_part_is_not_seen(store):
    (store.path / "parts" / ".12-ab.parquet.3f2e1d").write_bytes(b"PAR1")
    store.add([StepRecord(id="a", name="one")])
    assert names(store) == ["one"]


def test_the_last_revision_of_a_record_counts(store):
    store.add([StepRecord(id="a", name="one", team="feed", revision=1)])
    store.add([StepRecord(id="a", name="one", team="ads")])
    assert [record.team for record in store.records()] == ["feed"]


def test_a_newer_store_is_refused_with_what_to_do(store):
    (store.path / STORE).write_text(json.dumps({"format": "foretrace fleet", "version": 99}))
    with pytest.raises(ForetraceError, match=r"version 99.*Update Foretrace"):
        Store.open(store.path)


def test_a_folder_of_other_things_is_no_store(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ForetraceError, match="is no store"):
        Store.open(tmp_path, create=True)


def test_a_store_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(ForetraceError, match="foretrace fleet add"):
        Store.open(tmp_path / "none")


def test_a_damaged_index_is_named(store):
    (store.path / INDEX).write_bytes(b"PAR1 nothing")
    with pytest.raises(ForetraceError, match=r"index\.parquet can't be read"):
        store.records()


def test_a_full_disk_is_one_line_and_what_was_there_is_kept(store, monkeypatch):
    store.add([StepRecord(id="a", name="one")])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ForetraceError, match=r"No space left on device.*what is in the store is kept"):
        store.add([StepRecord(id="b", name="two")])
    monkeypatch.undo()
    assert names(store) == ["one"] and not list((store.path / "parts").glob(".*"))


def test_a_read_only_store_is_one_line(store, monkeypatch):
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("foretrace.fleet.store.atomic_write", refused)
    with pytest.raises(ForetraceError, match=r"can't be written \(Permission denied\)"):
        store.add([StepRecord(id="a", name="one")])
