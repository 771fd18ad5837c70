"""What-ifs in the terminal: the plans of `advise`; a gate's answer, as Markdown for a pull request too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from foretrace.report.formatting import bytes_, figure, ms, percent, printable
from foretrace.report.terminal import Blocks, Fact, fact_lines, note_lines, table

if TYPE_CHECKING:
    from foretrace.whatif.advise import Advice
    from foretrace.whatif.gate import CallChange, FigureChange, Gate
    from foretrace.whatif.plans import Plan


HEADING = "<!-- foretrace gate -->"
NAMES = {
    "step_ms": "step, ms",
    "step_ms_back_to_back": "next step, ms",
    "device_active_ms": "device active, ms",
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


def advice_blocks(advice: Advice, top: int | None) -> Blocks:
    """The answer, the table of plans, and what each changes."""
    yield fact_lines(f"{advice.source} on {advice.world} x {advice.platform}, {advice.goal}", list(_plan_facts(advice)))
    priced = any(plan.cost is not None for plan in advice.plans)
    columns = ("#", "step ms", "samples/s", "reserved", "GPUs", *(("$ a million",) if priced else ()), "<plan…")
    yield table("Plans", columns, [_plan_row(n, plan, priced) for n, plan in enumerate(advice.plans, 1)], top)
    for number, plan in enumerate(advice.plans[:3], 1):
        lines = [f"{number}. {', '.join(plan.changes) or 'as it is'}", *(f"   - {why}" for why in plan.why)]
        yield Text("\n".join(map(printable, lines)))
        # Code to paste: longer lines stay lines.
        yield Text("\n".join(printable(f"     {line}") for line in plan.apply), no_wrap=True, overflow="ignore")
    yield from note_lines(advice.notes)


def _plan_facts(advice: Advice) -> Iterator[Fact]:
    best, given = advice.plans[0], advice.given
    span = f" (80 %: {ms(best.low_ms)} – {ms(best.high_ms)})" if best.low_ms is not None else ""
    faster = ""
    if given is not None and given.sample_us and given is not best:
        more = given.sample_us / best.sample_us
        faster = f"; {more:.2f} times as many samples a second as {', '.join(given.changes) or 'it is'}"
    yield "best", f"{ms(best.step_ms)} ms", f"a step{span}: {', '.join(best.changes) or 'as it is'}{faster}"
    pruned = f"; {advice.pruned:,} can't fit by their weights and states alone" if advice.pruned else ""
    yield "searched", f"{advice.simulated:,}", f"of {advice.space:,} plans were simulated{pruned}"


def _plan_row(number: int, plan: Plan, priced: bool) -> list[str]:
    per_second = figure(plan.samples_per_second) if plan.samples_per_second else "?"
    cost = [figure(plan.cost) if plan.cost is not None else "?"] if priced else []
    held = bytes_(plan.reserved_bytes or plan.memory_bytes)
    step = f"{'~' if plan.estimated else ''}{ms(plan.step_ms)}"
    changes = " ".join(plan.changes) or "as it is"
    return [f"{number}", step, per_second, held, f"{plan.ranks:,}", *cost, changes]


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
