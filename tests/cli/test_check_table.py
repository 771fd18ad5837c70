from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "examples" / "gpt.py"


def test_the_command_writes_a_stack_that_predict_takes(tmp_path, foretrace):
    path, out = tmp_path / "steps.csv", tmp_path / "ours.json"
    path.write_text(f"model,parallel,gpu,ms\n{MODEL},data=2,a100,900\n")
    ran = foretrace("check-table", path, "--fit", "1", "--out", out)
    assert ran.code == 0, ran.err
    assert "forecasts against measured steps" in ran.out and "By configuration" in ran.out
    predicted = foretrace("predict", MODEL, "--on", "a100", "--parallel", "data=2", "--stack", out, "--json")
    fields = json.loads(predicted.out)
    assert fields["stack"] == "ours"
    refused = foretrace("check-table", path, "--out", out)
    assert refused.code == 2 and "--out is for a fitted stack" in refused.err


def test_a_column_has_the_power_limit(tmp_path, foretrace):
    path = tmp_path / "steps.csv"
    path.write_text(f"model,parallel,gpu,ms,power_limit\n{MODEL},data=2,h100,900,400\n{MODEL},data=2,h100,900,\n")
    ran = foretrace("check-table", path, "--json", "--stack", "none")
    assert ran.code == 0, ran.err
    limited, free = json.loads(ran.out)["rows"]
    assert limited["predicted_ms"] >= free["predicted_ms"] and limited["memory_bytes"] == free["memory_bytes"] > 0


def test_a_stack_replaces_a_stack_and_nothing_else(tmp_path, foretrace):
    path, other, out = tmp_path / "steps.csv", tmp_path / "mine.txt", tmp_path / "ours.json"
    text = f"model,parallel,gpu,ms\n{MODEL},data=2,a100,900\n"
    path.write_text(text)
    other.write_text("precious")
    for place, said in ((other, "is not a stack that Foretrace wrote"), (path, "would replace")):
        ran = foretrace("check-table", path, "--fit", "1", "--out", place)
        assert ran.code == 2 and said in ran.err
    assert (other.read_text(), path.read_text()) == ("precious", text)
    for _ in range(2):
        assert foretrace("check-table", path, "--fit", "1", "--out", out).code == 0
    assert foretrace("check-table", path, "--fit", "1", "--out", os.devnull).code == 0
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("kind", ["a pipe", "a device", "does not exist", "is a folder", "utf-8"])
def test_what_is_no_table_is_refused_in_one_line(tmp_path, foretrace, kind):
    path = tmp_path / "steps.csv"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path = Path("/dev/zero")
    elif kind == "is a folder":
        path.mkdir()
    elif kind == "utf-8":
        path.write_bytes(b"\xff\xfe")
    ran = foretrace("check-table", path)
    assert ran.code == 2 and f"{path}" in ran.err and kind in ran.err and ran.err.count("\n") == 1
