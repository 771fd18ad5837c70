"""Advice in the terminal: the best plans, then why and how of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from foretrace.report.formatting import bytes_, figure, ms, printable
from foretrace.report.terminal import Blocks, Fact, fact_lines, note_lines, table

if TYPE_CHECKING:
    from foretrace.whatif.advise import Advice
    from foretrace.whatif.plans import Plan


def advice_blocks(advice: Advice, top: int | None) -> Blocks:
    """The answer, the table of plans, and what each changes."""
    yield fact_lines(f"{advice.source} on {advice.world} x {advice.platform}, {advice.goal}", list(_facts(advice)))
    priced = any(plan.cost is not None for plan in advice.plans)
    columns = ("#", "step ms", "samples/s", "reserved", "GPUs", *(("$ a million",) if priced else ()), "<plan…")
    yield table("Plans", columns, [_row(n, plan, priced) for n, plan in enumerate(advice.plans, 1)], top)
    for number, plan in enumerate(advice.plans[:3], 1):
        lines = [f"{number}. {', '.join(plan.changes) or 'as it is'}", *(f"   - {why}" for why in plan.why)]
        yield Text("\n".join(map(printable, lines)))
        # Code to paste: longer lines stay lines.
        yield Text("\n".join(printable(f"     {line}") for line in plan.apply), no_wrap=True, overflow="ignore")
    yield from note_lines(advice.notes)


def _facts(advice: Advice) -> Iterator[Fact]:
    best, given = advice.plans[0], advice.given
    span = f" (80 %: {ms(best.low_ms)} – {ms(best.high_ms)})" if best.low_ms is not None else ""
    faster = ""
    if given is not None and given.sample_us and given is not best:
        faster = (
            f"; {given.sample_us / best.sample_us:.2f} times as many samples a second as {', '.join(given.changes)}"
        )
    yield "best", f"{ms(best.step_ms)} ms", f"a step{span}: {', '.join(best.changes) or 'as it is'}{faster}"
    pruned = f"; {advice.pruned:,} can't fit by their weights and states alone" if advice.pruned else ""
    yield "searched", f"{advice.simulated:,}", f"of {advice.space:,} plans were simulated{pruned}"


def _row(number: int, plan: Plan, priced: bool) -> list[str]:
    per_second = figure(plan.samples_per_second) if plan.samples_per_second else "?"
    cost = [figure(plan.cost) if plan.cost is not None else "?"] if priced else []
    held = bytes_(plan.reserved_bytes or plan.memory_bytes)
    step = f"{'~' if plan.estimated else ''}{ms(plan.step_ms)}"
    changes = " ".join(plan.changes) or "as it is"
    return [f"{number}", step, per_second, held, f"{plan.ranks:,}", *cost, changes]
