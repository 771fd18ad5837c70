"""What benchmarks take from each other is there: many of them run only where a GPU is, and types are not checked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
TREES = {
    ".".join(path.relative_to(FOLDER).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(FOLDER.rglob("*.py"))
}


def made_by(tree: ast.Module) -> set[str]:
    """The names that a module has."""
    names = set()
    for line in ast.walk(tree):
        if isinstance(line, ast.FunctionDef | ast.ClassDef):
            names.add(line.name)
        elif isinstance(line, ast.Name) and isinstance(line.ctx, ast.Store):
            names.add(line.id)
        elif isinstance(line, ast.ImportFrom | ast.Import):
            names |= {one.asname or one.name for one in line.names}
    return names


@pytest.mark.parametrize("name", TREES)
def test_a_benchmark_finds_what_it_takes_from_others(name: str) -> None:
    for line in ast.walk(TREES[name]):
        if not isinstance(line, ast.ImportFrom) or not (line.module or "").startswith("benchmarks"):
            continue
        _, _, other = (line.module or "").partition(".")
        there = {name.rpartition(".")[2] for name in TREES if name.rpartition(".")[0] == other}
        for module in {other, f"{other}.__init__"} & TREES.keys():
            there |= made_by(TREES[module])
        assert {one.name for one in line.names} <= there, f"benchmarks.{other} has no such names"


def test_the_readme_has_each_claim_with_its_truth() -> None:
    text = (FOLDER / "README.md").read_text()
    claims = [name.split(".")[1:] for name in TREES if name.startswith("claims.") and not name.endswith("__init__")]
    missing = [
        f"{kind}.{name}" for kind, name in claims if f"{kind}.*" not in text and not re.search(rf"\b{name}\b", text)
    ]
    assert claims and not missing
