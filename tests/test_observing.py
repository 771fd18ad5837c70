"""Looking at what is at hand: a path will do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrace as ft
from foretrace.graph import ForetraceError
from tests.cli.samples import step_of_two_ops


def test_a_path_is_read_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(step_of_two_ops()))
    assert ft.observe(str(path)).to_dict() == ft.observe(ft.load(path)).to_dict()


def test_a_path_with_nothing_there_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ForetraceError, match="missing"):
        ft.observe(tmp_path / "missing.json")
