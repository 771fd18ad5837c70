from __future__ import annotations

import json
from pathlib import Path

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
