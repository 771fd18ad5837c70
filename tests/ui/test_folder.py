from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from foretrace.graph import ForetraceError
from foretrace.record.folder import is_recording
from foretrace.ui.folder import Folder


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "shown"
    (root / "run" / "rank-0").mkdir(parents=True)
    (root / "run" / "job.json").write_text("{}")
    (root / "job" / "rank0").mkdir(parents=True)
    (root / "job" / "rank0" / "kineto.json.gz").write_bytes(b"")
    (root / "forecast.json").write_text(json.dumps({"step_ms": 1.0}))
    (root / "deep" / "down").mkdir(parents=True)
    (root / "deep" / "down" / "trace.json.gz").write_bytes(b"")
    (root / "notes.txt").write_text("")
    (root / ".hidden.json").write_text("")
    (tmp_path / "secret.json").write_text("{}")
    return Folder(root)


def test_recordings_traces_and_documents_are_found(folder):
    found = {item.name: item.kind for item in folder.items()}
    assert found == {"run": "recording", "job": "trace", "forecast.json": "document", "deep": "trace"}


def test_each_recording_of_a_folder_is_found_also_where_traces_lie_beside_them(folder):
    (folder.root / "job" / "a" / "rank-0").mkdir(parents=True)
    (folder.root / "job" / "a" / "job.json").write_text("{}")
    found = {item.name: item.kind for item in folder.items()}
    assert found["job/a"] == "recording" and found["job/rank0"] == "trace" and "job" not in found


@pytest.mark.parametrize("name", ["../secret.json", "run/../../secret.json", "", ".", "/etc/passwd", "a\0b", "gone"])
def test_nothing_outside_the_folder_is_read(folder, name):
    with pytest.raises(ForetraceError, match="not in the folder"):
        folder.path(name)


def test_links_that_lead_out_are_refused_and_not_listed(folder):
    (folder.root / "link.json").symlink_to(folder.root.parent / "secret.json")
    (folder.root / "up").symlink_to(folder.root.parent)
    (folder.root / "loop").symlink_to(folder.root / "loop")
    for name in ("link.json", "up/secret.json", "loop"):
        with pytest.raises(ForetraceError, match="not in the folder"):
            folder.path(name)
    assert {"link.json", "up", "loop"}.isdisjoint(item.name for item in folder.items())


def test_a_folder_with_links_inside_that_lead_out_is_refused(folder):
    (folder.root / "job" / "rank0" / "et.json.gz").symlink_to(folder.root.parent / "secret.json")
    with pytest.raises(ForetraceError, match="links that lead out"):
        folder.path("job")


def test_a_link_that_stays_inside_may_be_opened(folder):
    (folder.root / "again.json").symlink_to(folder.root / "forecast.json")
    assert folder.path("again.json").read_text() == folder.path("forecast.json").read_text()


def test_what_can_not_be_named_or_read_is_not_listed_and_hides_nothing(folder, monkeypatch):
    there = {item.name for item in folder.items()}
    (Path(os.fsdecode(os.fsencode(folder.root) + b"/bad\xff.json"))).write_text("{}")
    (folder.root / "locked").mkdir()
    monkeypatch.setattr("foretrace.ui.folder.is_recording", unreadable(folder.root / "locked"))
    monkeypatch.setattr("foretrace.ui.folder.os.scandir", unreadable(folder.root / "locked", os.scandir))
    assert {item.name for item in folder.items()} == there


def unreadable(locked, otherwise=is_recording):
    """As otherwise, but for one folder that this user may not read."""

    def tried(path):
        if path == locked:
            raise PermissionError(path)
        return otherwise(path)

    return tried


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ForetraceError, match="is no folder"):
        Folder(tmp_path / "nowhere")


def test_a_small_json_file_is_a_trace_where_it_begins_as_one(tmp_path):
    (tmp_path / "kineto.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (tmp_path / "forecast.json").write_text('{"step_ms": 1.0}')
    kinds = {item.name: item.kind for item in Folder(tmp_path).items()}
    assert kinds == {"kineto.json": "trace", "forecast.json": "document"}
