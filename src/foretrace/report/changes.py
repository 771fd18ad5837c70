"""What changed from one step to another: the step first, then what got slower and what faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from foretrace.report.names import printable, short
from foretrace.report.numbers import change, ms
from foretrace.report.tables import lines, table

Words = dict[str, Any]

LEAST_MS = 0.0005
"""Changes below this are no more than rounding."""


def changes(words: Words, top: int) -> Iterator[RenderableType]:
    """A line for the step and one for the device; then the tables."""
    yield lines(
        f"{words['before']} → {words['after']}",
        [
            ("step", change(*words["step_ms"]), "of the slowest rank"),
            ("device", change(*words["device_active_ms"]), "active, on the busiest rank"),
        ],
    )
    yield from by_op_and_family(words, top)


def by_op_and_family(words: Words, top: int) -> Iterator[RenderableType]:
    """What got slower and what faster: by op, by kernel family, by phase; and which ops only one of the two has."""
    slower = [row for row in words["by_op"] if row["change_ms"] >= LEAST_MS]
    faster = [row for row in reversed(words["by_op"]) if row["change_ms"] <= -LEAST_MS]
    if slower:
        yield _table("Slower, by op", slower, top)
    if faster:
        yield _table("Faster, by op", faster, top)
    if not slower and not faster:
        yield Text("No op got slower or faster.")
    for key, title in (("by_family", "By kernel family"), ("by_phase", "By phase")):
        changed = [row for row in words[key] if abs(row["change_ms"]) >= LEAST_MS]
        if changed:
            yield _table(title, sorted(changed, key=lambda row: -abs(row["change_ms"])), top)
    for key, title in (("new", "Only in the second"), ("gone", "Only in the first")):
        if words[key]:
            more = f" and {len(words[key]) - top} more" if len(words[key]) > top else ""
            yield Text(f"{title}: {', '.join(printable(name) for name in words[key][:top])}{more}")


def _table(title: str, rows: list[Words], top: int) -> RenderableType:
    columns = ["<name…", "change ms", "device ms", "→", "host ms", "→", "count", "→"]
    return table(title, columns, [both_sides(row, row["change_ms"]) for row in rows], top)


def both_sides(row: Words, difference_ms: float) -> list[str]:
    """The cells of a row that holds pairs of times and counts: its name, their difference, then each pair."""
    return [
        short(row["name"]),
        f"{'+' if difference_ms > 0 else ''}{ms(difference_ms)}",
        *(ms(value) for word in ("device_ms", "host_ms") for value in row[word]),
        *(f"{value:.0f}" for value in row["count"]),
    ]
