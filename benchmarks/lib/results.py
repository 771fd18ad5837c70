"""Writes docs/results.md: the newest table of each benchmark, with the claim it stands for, the machine and the date.

python -m benchmarks.lib.results
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from benchmarks.lib import table as tables
from benchmarks.lib.table import RESULTS, text_of

BENCHMARKS = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results.md"
INTRODUCTION = """# Results

What the benchmarks found, good or bad. Each is a claim, in `benchmarks/claims/`, that fails where it does not hold:
`python -m benchmarks.claims.accuracy.device_time` measures that one again, `make bench` all those that need no GPU.
This page is written by `python -m benchmarks.lib.results` from what they kept.
"""


def page() -> str:
    """The whole page."""
    kept = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    return INTRODUCTION + "".join(f"\n{section(benchmark)}" for benchmark in kept)


def section(kept: dict[str, Any]) -> str:
    """What one benchmark kept: its claim, its table, and where and when it was measured."""
    name, rows = kept["benchmark"], kept["rows"]
    # Details that are worth a place in the JSON only are dictionaries.
    columns = [column for column in rows[0] if not isinstance(rows[0][column], dict)]
    lines = [columns, ["---"] * len(columns), *([text_of(row.get(column)) for column in columns] for row in rows)]
    table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    where = f"{machine(kept['machine'])}, {kept['date']}."
    if there := measured_on(name):
        where = f"Measured on {there}; put together on {where}"
    verdict = f"**{kept['verdict']}**\n\n" if "verdict" in kept else ""
    return f"## {name}\n\n{claim(name)}\n\n{verdict}{table}\n\n{where}\n"


def script(name: str) -> ast.Module:
    """A benchmark as written."""
    return ast.parse(next(BENCHMARKS.rglob(f"{name}.py")).read_text())


def measured_on(name: str) -> str:
    """The machine whose truth a benchmark reads; empty where it measures by itself."""
    for line in script(name).body:
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Name) and _named(line) == "MEASURED_ON":
            return str(getattr(tables, line.value.id))
    return ""


def _named(line: ast.Assign) -> str:
    return line.targets[0].id if isinstance(line.targets[0], ast.Name) else ""


def claim(name: str) -> str:
    """What a benchmark's docstring says, but for how to run it."""
    said = ast.get_docstring(script(name)) or ""
    return "\n\n".join(part for part in said.split("\n\n") if not part.startswith("    "))


def machine(told: dict[str, Any]) -> str:
    """The machine in words."""
    words = [told.get("gpu"), told.get("cpu"), f"{told['cores']} cores", f"Python {told['python']}"]
    if told.get("torch"):
        words.append(f"torch {told['torch']}")
    return ", ".join(word for word in words if word)


if __name__ == "__main__":
    PAGE.write_text(page())
