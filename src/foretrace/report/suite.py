"""A suite of replays, in the terminal: one row each, and what they come to together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.report.check import off
from foretrace.report.numbers import bytes_, ms, percent
from foretrace.report.tables import lines, table

COLUMNS = ("<recording…", "weight", "step ms", "was", "off", "memory", "calls")


def suite_blocks(words: dict[str, Any], top: int) -> Iterator[RenderableType]:
    """The whole first, then each member."""
    yield lines("suite", _headline(words))
    rows = [_row(member) for member in words["suite"] if "error" not in member]
    if rows:
        yield table("Replays", COLUMNS, rows, top)
    failed = [[member["name"], member["error"]] for member in words["suite"] if "error" in member]
    if failed:
        yield table("Not replayed", ["<recording", "<why…"], failed, top)


def _headline(words: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if words["step_ms"] is not None:
        yield "step", f"{ms(words['step_ms'])} ms", "weighted mean"
    elif failed := sum("error" in member for member in words["suite"]):
        yield "step", "none", f"no total: {failed} of {len(words['suite'])} could not be replayed"
    if words["ratio"] is not None:
        yield "ratio", f"{words['ratio']:.3f}", "of the original's step times, weighted geometric mean"
    yield "covered", percent(words["coverage"]["calls"]), "of the calls, by weight"


def _row(member: dict[str, Any]) -> list[str]:
    took, was = member["step_ms"], member["original"].get("step_ms")
    return [
        member["name"],
        f"{member['weight']:g}",
        ms(took) if took else "–",
        ms(was) if was else "–",
        off((took, was)) if took and was else "–",
        bytes_(member["peak_memory_bytes"]),
        percent(member["coverage"]["calls"]),
    ]
