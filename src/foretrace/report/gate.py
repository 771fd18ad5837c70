"""A gate's answer: in the terminal, and as Markdown for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foretrace.report.formatting import bytes_, figure, percent
from foretrace.report.terminal import Blocks, Fact, fact_lines, note_lines, table

if TYPE_CHECKING:
    from foretrace.whatif.gate import CallChange, FigureChange, Gate

HEADING = "<!-- foretrace gate -->"
NAMES = {
    "step_ms": "step, ms",
    "step_ms_back_to_back": "next step, ms",
    "device_ms": "device time, ms",
    "kernels": "kernels",
    "launches": "launches",
    "syncs": "waits for the device",
    "compiled_programs": "compiled programs",
    "peak_memory_bytes": "peak memory",
    "reserved_memory_bytes": "reserved memory",
}
COLUMNS = ("<op…", "<phase", "calls", "us", "<module…", "<line")
ROWS = 15
"""Calls in a comment on a change: more are not read there."""


def gate_blocks(gate: Gate, top: int | None) -> Blocks:
    """Figures first, then the calls that changed and the modules they are in."""
    yield fact_lines(_title(gate), list(_facts(gate)))
    if gate.calls:
        yield table("What changed: calls and the lines they come from", COLUMNS, [_cells(c) for c in gate.calls], top)
        modules = [[name or "outside of modules", _us(us)] for name, us in gate.modules.items()]
        yield table("By module, device and host time added", ("<module…", "us"), modules, top)
    yield from note_lines(gate.notes)


def as_markdown(gate: Gate) -> str:
    """A comment for a pull request."""
    lines = [HEADING, f"### {_title(gate)}", "", "| figure | baseline | now | change |", "| --- | --- | --- | --- |"]
    for one in gate.figures:
        change = f"{_change(one)} :x:" if one.worse else _change(one)
        lines.append(f"| {NAMES[one.name]} | {' | '.join(_values(one))} | {change} |")
    if gate.calls:
        lines += ["", "| op | phase | calls | us | module | line |", "| --- | --- | --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(_escaped(cell) for cell in _cells(call))} |" for call in gate.calls[:ROWS]]
        if len(gate.calls) > ROWS:
            lines.append(f"\n… and {len(gate.calls) - ROWS} more")
    return "\n".join([*lines, *(f"\n{note}" for note in gate.notes)]) + "\n"


def _title(gate: Gate) -> str:
    said = "passed" if gate.passed else f"failed: worse by more than {percent(gate.fail_over)}"
    return f"{gate.source} on {gate.platform}: {said}"


def _facts(gate: Gate) -> Iterator[Fact]:
    for one in gate.figures:
        yield NAMES[one.name], " → ".join(_values(one)), f"{_change(one)}{'   WORSE' if one.worse else ''}"


def _values(one: FigureChange) -> list[str]:
    """A figure before and after, with as many digits as tell them apart."""
    both, is_size = (one.before, one.after), one.name.endswith("_bytes")
    said = [bytes_(int(value)) if is_size else figure(value) for value in both]
    if said[0] != said[1] or one.before == one.after:
        return said
    return [f"{value / 2**20:,.6g} MiB" if is_size else f"{value:,.6g}" for value in both]


def _change(one: FigureChange) -> str:
    if one.change is None:
        return "as before" if one.after == one.before else "new"
    return "as before" if one.after == one.before else f"{100 * one.change:+.2f} %"


def _us(us: float) -> str:
    return f"{us:+,.1f}"


def _cells(call: CallChange) -> list[str]:
    where = f"{call.line}: {call.code}" if call.code else call.line
    return [call.op, call.phase, f"{call.count[0]:,} → {call.count[1]:,}", _us(call.change_us), call.module, where]


def _escaped(cell: str) -> str:
    """Text of a cell: what the user's code holds must not become markup."""
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`").replace("\n", " ")
