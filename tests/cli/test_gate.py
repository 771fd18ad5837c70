"""`foretrace gate` on the command line: a script, its baseline, and edits of the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPT = """
import torch

def make_step():
    with torch.device("cuda"):
        model, given = torch.nn.Linear(64, 8), torch.randn(32, 64)
    update = torch.optim.AdamW(model.parameters())

    def step():
        update.zero_grad()
        model(given).sum().backward()
        update.step()

    return step
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_gate_passes_the_same_step_and_fails_a_slower_one(foretrace, script, tmp_path):
    base, comment = tmp_path / "perf.json", tmp_path / "gate.md"
    arguments = ("gate", script, "--on", "h200", "--baseline", base)
    assert foretrace(*arguments).code == 2
    made = foretrace(*arguments, "--update")
    assert made.code == 0, made.err
    written = base.read_bytes()
    script.write_text(SCRIPT.replace("def step():", "# a comment\n    def step():").replace("given", "rows"))
    same = foretrace(*arguments, "--fail-over", "0%", "--json")
    assert same.code == 0 and json.loads(same.out)["calls"] == []
    script.write_text(SCRIPT.replace("model(given)", "model(given.clone())"))
    slower = foretrace(*arguments, "--fail-over", "1%", "--markdown", comment)
    assert slower.code == 1
    assert "WORSE" in slower.out and "aten::clone" in slower.out and "train.py:11" in slower.out
    assert "aten::clone" in comment.read_text()
    script.write_text(SCRIPT)
    assert foretrace(*arguments, "--update").code == 0 and base.read_bytes() == written
    other = foretrace("gate", script, "--on", "a100", "--baseline", base)
    assert other.code == 2 and "for the platform h200, not a100" in other.err
