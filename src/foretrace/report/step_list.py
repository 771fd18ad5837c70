"""All steps of a trace in the terminal (`show --steps`): how long each takes, and what differs in the slow ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from foretrace.report.formatting import ms, plural, short_name, signed_ms
from foretrace.report.terminal import Blocks, fact_lines, note_lines, table

if TYPE_CHECKING:
    from foretrace.analysis.steps import StepList, StepRow
    from foretrace.fleet.stragglers import StragglerReport


def step_list_blocks(steps: StepList, top: int | None) -> Blocks:
    """All steps of a trace, and what differs in the slow ones; ``top`` things of each."""
    slow = [row for row in steps.steps if row.slow]
    about = f"{plural(len(slow), 'step')} of {len(steps.steps)} more than 10 % slower" if slow else "none much slower"
    yield fact_lines(steps.source or "the trace", [("step", f"{ms(steps.median_ms)} ms", f"median; {about}")])
    ranks = len({row.rank for row in steps.steps}) > 1
    columns: dict[str, Callable[[StepRow], str]] = {
        "<step": lambda row: row.step,
        "ms": lambda row: ms(row.ms),
        "rank": lambda row: str(row.rank),
        "active": lambda row: "–" if row.device_active_ms is None else ms(row.device_active_ms),
        "idle": lambda row: "–" if row.device_idle_ms is None else ms(row.device_idle_ms),
        "kernels": lambda row: f"{row.kernels:,}",
        "<bound": lambda row: row.bound or ("host" if row.device_active_ms == 0 and not row.kernels else "–"),
        "<": lambda row: "slow" if row.slow else "",
    }
    if not ranks:
        del columns["rank"]
    cells = [[cell(row) for cell in columns.values()] for row in steps.steps]
    yield table("Steps, each of the rank that takes longest", list(columns), cells)
    for row in slow:
        longer = row.ms - steps.median_ms
        named = [(more, *name.partition(": ")) for name, more in row.differs.items()]
        if abs(rest := longer - sum(row.differs.values())) > 0.01 * longer:
            named.append((rest, "the rest", "", ""))
        rows = [[signed_ms(more), what, short_name(name)] for more, what, _, name in named]
        if row.differs:
            title = f"{row.step}: {ms(longer)} ms longer than the median step, which adds up from"
            yield table(title, ["ms", "<what", "<name…"], rows, top)
    if steps.stragglers is not None:
        from foretrace.report.fleet import straggler_blocks

        yield from straggler_blocks(cast("StragglerReport", steps.stragglers), top)
    if steps.notes:
        yield from note_lines(steps.notes)
