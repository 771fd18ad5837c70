"""Results in the terminal: `print_report` for every kind of result, and the tables that the reports are made of.

A report is a sequence of blocks: the answer in a few facts first, then tables. Tables fit eighty columns: numbers keep
their width, names are cut, but never so far that they say nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
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
    "StepList": "ranks.step_list_blocks",
    "StepDifference": "comparisons.difference_blocks",
    "Check": "comparisons.check_blocks",
    "TableCheck": "comparisons.table_blocks",
    "WhatIf": "comparisons.whatif_blocks",
    "Sweep": "comparisons.sweep_blocks",
    "Scaling": "comparisons.scaling_blocks",
    "Gate": "whatif.gate_blocks",
    "Advice": "whatif.advice_blocks",
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
    shown = [[printable(cell) for cell in row] for row in rows[:top]]
    parts: list[RenderableType] = [Text(title, style="bold"), _Columns(columns, shown)]
    if top is not None and len(rows) > top:
        parts.append(Text(f"… and {plural(len(rows) - top, 'row')} more", style="dim"))
    return Group(*parts)


def record_table(
    title: str, columns: dict[str, Callable[[T], str]], rows: Iterable[T], top: int | None = None
) -> RenderableType:
    """A titled table of records, with what each column shows of one."""
    return table(title, list(columns), [[cell(row) for cell in columns.values()] for row in rows], top)


class _Columns:
    """Columns of text and numbers; names are cut for a narrow terminal, and its width exceeded rather than numbers.

    A `rich.table.Table` of as many rows takes longer than all that is printed in it takes to find out.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._is_text = [column.startswith("<") for column in columns]
        headings = [column.strip("<…").split("\n") for column in columns]
        height = max(map(len, headings))
        self._head: list[Sequence[str]] = [*zip(*([""] * (height - len(lines)) + lines for lines in headings))]
        self._rows = rows
        self._widths = [max(map(cell_len, cells)) for cells in zip(*self._head, *rows)]
        self._least = {  # of names; those of columns on the right give way first
            place: max(LEAST_NAME, *map(cell_len, headings[place]))
            for place, column in reversed([*enumerate(columns)])
            if column.endswith("…")
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._fitted(options.max_width)
        dim = console.get_style("dim")
        for row in self._head:
            yield Segment(self._line(row, widths), dim)
            yield Segment.line()
        for row in self._rows:
            yield Segment(self._line(row, widths))
            yield Segment.line()

    def _fitted(self, most: int) -> list[int]:
        """Widths of the columns, of which names give way, the widest first."""
        widths = list(self._widths)
        for _ in range(sum(widths) + GAP * (len(widths) - 1) - most):
            longer = [place for place, least in self._least.items() if widths[place] > least]
            if not longer:
                break
            widths[max(longer, key=widths.__getitem__)] -= 1
        return widths

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = []
        for cell, width, is_text in zip(row, widths, self._is_text):
            cell = cell if is_text else cell.rstrip()
            missing = width - cell_len(cell)
            if missing < 0:
                cell, missing = f"{set_cell_size(cell, width - 1)}…", 0
            cells.append(cell + " " * missing if is_text else " " * missing + cell)
        return (" " * GAP).join(cells)


def fact_lines(title: str, facts: Iterable[Fact]) -> RenderableType:
    """A title, and a line for each fact below it."""
    rows = [(f"  {name}", printable(figure), printable(meaning)) for name, figure, meaning in facts]
    return Group(Text(printable(title), style="bold"), _Paragraphs(rows, ("cyan", "bold"), GAP))


def note_lines(texts: Sequence[str]) -> Blocks:
    """Notes, one below the other; no block where there are none."""
    if texts:
        rows = [("-", printable(text)) for text in texts]
        yield Group(Text("Notes", style="bold"), _Paragraphs(rows, ("",), 1))


class _Paragraphs:
    """Texts beside short columns, each over as many lines as it takes."""

    def __init__(self, rows: Sequence[tuple[str, ...]], styles: Sequence[str], gap: int) -> None:
        self._rows, self._styles, self._gap = rows, styles, gap
        self._widths = [max(map(cell_len, cells), default=0) for cells in [*zip(*rows)][:-1]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        beside = sum(self._widths) + self._gap * len(self._widths)
        room = max(options.max_width - beside, LEAST_NAME)
        styles = [console.get_style(style) if style else None for style in self._styles]
        for *cells, text in self._rows:
            for cell, width, style in zip(cells, self._widths, styles):
                yield Segment(cell + " " * (width - cell_len(cell) + self._gap), style)
            fits = cell_len(text) <= room
            lines = [text] if fits else [line.plain for line in Text(text).wrap(console, room, overflow="fold")]
            yield Segment(f"\n{' ' * beside}".join(lines))
            yield Segment.line()


def bar(share: float | None) -> str:
    """A share as a bar, to the eighth of a cell.

    >>> bar(0.5), bar(0.01), bar(None)
    ('████    ', '▏       ', '        ')
    """
    eighths = round(min(max(share or 0.0, 0.0), 1.0) * BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + " ▏▎▍▌▋▊▉"[rest] * (rest > 0)).ljust(BAR)
