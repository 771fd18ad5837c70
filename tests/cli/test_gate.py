"""`foretrace gate` on the command line: a script, its baseline, and edits of the script."""

from __future__ import annotations

import json


def test_a_gate_passes_the_same_step_and_fails_a_slower_one(foretrace, script, tmp_path):
    base, comment = tmp_path / "perf.json", tmp_path / "gate.md"
    arguments = ("gate", script, "--on", "h200", "--baseline", base)
    assert foretrace(*arguments).code == 2
    made = foretrace(*arguments, "--update")
    assert made.code == 0, made.err
    written, text = base.read_bytes(), script.read_text()
    script.write_text(text.replace("def step():", "# a comment\n    def step():").replace("given", "rows"))
    same = foretrace(*arguments, "--fail-over", "0%", "--json")
    assert same.code == 0 and json.loads(same.out)["calls"] == []
    script.write_text(text.replace("model(given)", "model(given.clone())"))
    slower = foretrace(*arguments, "--fail-over", "1%", "--markdown", comment)
    assert slower.code == 1
    assert "WORSE" in slower.out and "aten::clone" in slower.out and "train.py:11" in slower.out
    assert "aten::clone" in comment.read_text()
    script.write_text(text)
    assert foretrace(*arguments, "--update").code == 0 and base.read_bytes() == written
    other = foretrace("gate", script, "--on", "a100", "--baseline", base)
    assert other.code == 2 and "for the platform h200, not a100" in other.err
    ranks = foretrace("gate", script, "--world", "2", "--baseline", base)
    assert ranks.code == 2 and "for the platform h200, not h200, 2 ranks" in ranks.err
    base.write_text(json.dumps({**json.loads(written), "figures": {"kernels": 1}}))
    less = foretrace(*arguments)
    assert less.code == 2 and "has no step_ms" in less.err
