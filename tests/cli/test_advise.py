"""`foretrace advise` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_gate import SCRIPT


def test_plans_are_listed_with_how_to_apply_them(foretrace, tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ran = foretrace("advise", script, "--on", "h200", "--world", "1", "--json")
    assert ran.code == 0, ran.err
    fields = json.loads(ran.out)
    assert len(fields["plans"]) >= 3 and fields["simulated"] <= fields["space"]
    wrong = foretrace("advise", script, "--target", "soon")
    assert wrong.code == 2 and "is no time" in wrong.err
