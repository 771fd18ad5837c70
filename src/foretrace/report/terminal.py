"""Results in the terminal: `print_report` for every kind of result, and the tables that the reports are made of.

A report is a sequence of blocks: the answer in a few facts first, then tables. Tables fit eighty columns: numbers keep
their width, names are cut, but never so far that they say nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from foretrace.report.formatting import plural, printable

BAR = 8
"""Cells of a full bar."""
LEAST_NAME = 12
"""Cells that a name keeps, however narrow the terminal."""
GAP = 2
"""Cells between columns."""
FILE_WIDTH = 120
"""Of a pipe or a file, which has no width of its own: few names are cut."""

T = TypeVar("T")
Fact = tuple[str, str, str]
"""A line of a headline: name, figure, what it means."""
Blocks = Iterator[RenderableType]

BLOCKS = {
    "StepReport": "step.step_blocks",
    "StepList": "step_list.step_list_blocks",
    "StepDifference": "comparisons.difference_blocks",
    "Check": "comparisons.check_blocks",
    "TableCheck": "comparisons.table_blocks",
    "WhatIf": "comparisons.whatif_blocks",
    "Sweep": "comparisons.sweep_blocks",
    "Scaling": "comparisons.scaling_blocks",
    "Gate": "gate.gate_blocks",
    "Advice": "advice.advice_blocks",
    "Sharding": "sharding.sharding_blocks",
    "Replay": "replay.replay_blocks",
    "Suite": "replay.suite_blocks",
    "Summary": "platform.platform_blocks",
    "FabricSummary": "platform.fabric_blocks",
    "Listing": "platform.listing_blocks",
    "Comparison": "platform.comparison_blocks",
    "Added": "fleet.added_blocks",
    "FleetSummary": "fleet.fleet_blocks",
    "FleetSuite": "fleet.suite_blocks",
    "Drift": "fleet.drift_blocks",
    "FleetWhatIf": "fleet.whatif_blocks",
    "StragglerReport": "fleet.straggler_blocks",
    "Hang": "fleet.hang_blocks",
}
"""For each class of results, the function that makes its blocks: a command loads only what it prints."""


def print_report(result: object, top: int | None = None, console: Console | None = None) -> None:
    """Print a result, with at most ``top`` rows per table."""
    module, _, function = BLOCKS[type(result).__name__].partition(".")
    blocks: Any = getattr(import_module(f"foretrace.report.{module}"), function)
    given, console = console, console or Console(highlight=False, emoji=False)
    if given or console.is_terminal:
        _print_blocks(console, blocks(result, top))
        return
    if "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    with console.capture() as printed:
        _print_blocks(console, blocks(result, top))
    for line in printed.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _print_blocks(console: Console, blocks: Blocks) -> None:
    for number, block in enumerate(blocks):
        if number:
            console.print()
        console.print(block, crop=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], top: int | None = None) -> RenderableType:
    """A titled table of at most ``top`` rows, with the number of rows left out.

    Columns named like ``<word`` hold text, like ``<name…`` names that are cut where the terminal is narrow; the others
    hold numbers. A heading may have several lines.
    """
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    shown = [[printable(cell) for cell in row] for row in rows[:top]]
    least = -GAP
    for place, column in enumerate(columns):
        # Rich narrows columns that may wrap first; the cells themselves are cut instead of wrapped.
        text, cut, heading = column.startswith("<"), column.endswith("…"), column.strip("<…")
        width = max(map(cell_len, [*heading.split("\n"), *(row[place] for row in shown)]))
        width = min(width, LEAST_NAME) if cut else width
        made.add_column(heading, justify="left" if text else "right", no_wrap=not cut, min_width=width)
        least += width + GAP
    for row in shown:
        # Text, not str: a name like [red] or [/] must not be read as markup.
        made.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    parts: list[RenderableType] = [Text(title, style="bold"), _Uncut(made, least)]
    if top is not None and len(rows) > top:
        parts.append(Text(f"… and {plural(len(rows) - top, 'row')} more", style="dim"))
    return Group(*parts)


def record_table(
    title: str, columns: dict[str, Callable[[T], str]], rows: Iterable[T], top: int | None = None
) -> RenderableType:
    """A titled table of records, with what each column shows of one."""
    return table(title, list(columns), [[cell(row) for cell in columns.values()] for row in rows], top)


class _Uncut:
    """A table that exceeds a narrow terminal's width rather than lose its numbers."""

    def __init__(self, made: Table, least: int) -> None:
        self._made, self._least = made, least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._made, options.update_width(max(options.max_width, self._least)))


def fact_lines(title: str, facts: Iterable[Fact]) -> RenderableType:
    """A title, and a line for each fact below it."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, figure, meaning in facts:
        grid.add_row(f"  {name}", Text(printable(figure)), Text(printable(meaning)))
    return Group(Text(printable(title), style="bold"), grid)


def note_lines(texts: Sequence[str]) -> Blocks:
    """Notes, one below the other; no block where there are none."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for text in texts:
        grid.add_row("-", Text(printable(text), overflow="fold"))
    if texts:
        yield Group(Text("Notes", style="bold"), grid)


def bar(share: float | None) -> str:
    """A share as a bar, to the eighth of a cell.

    >>> bar(0.5), bar(0.01), bar(None)
    ('████    ', '▏       ', '        ')
    """
    eighths = round(min(max(share or 0.0, 0.0), 1.0) * BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + " ▏▎▍▌▋▊▉"[rest] * (rest > 0)).ljust(BAR)
