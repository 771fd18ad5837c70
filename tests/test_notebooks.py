"""The notebooks of the examples: their cells run, in order, and what a cell ends with can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    names: dict[str, object] = {}
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)  # what they print is made when they are run
    shown = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, str(path), "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), str(path), "eval"), names)
            shown += bool(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
    assert shown > 3
