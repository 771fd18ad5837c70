"""Snapshots for pytorch.org/memory_viz."""

import pickle
from pathlib import Path

import pytest

from foretrace.errors import ForetraceError
from foretrace.formats.memory_viz import write_snapshot

EVENTS = [
    (True, 1024, 512, 0, "aten::mm", "weights"),
    (True, 1536, 512, 0, "aten::relu", "activations"),
    (False, 1536, 512, 0, "aten::relu", "activations"),
]


def test_a_snapshot_has_the_fields_that_the_viewer_reads(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    write_snapshot(path, EVENTS, {1024: 2 << 20})
    snapshot = pickle.loads(path.read_bytes())
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert actions == ["alloc", "alloc", "free_requested", "free_completed"]
    (segment,) = snapshot["segments"]
    assert [(block["state"], block["size"]) for block in segment["blocks"]] == [
        ("active_allocated", 512), ("inactive", (2 << 20) - 512),
    ]  # fmt: skip
    assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert segment["blocks"][0]["frames"][0]["name"] == "aten::mm"


def test_a_file_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    path.write_text("mine")
    with pytest.raises(ForetraceError):
        write_snapshot(path, EVENTS, {})
    assert path.read_text() == "mine"
