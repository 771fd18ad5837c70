"""Tables that fit eighty columns: numbers keep their width; names are cut, but not so far that they say nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from foretrace.report.names import printable
from foretrace.report.numbers import plural

BAR = 8
"""Cells of a full bar."""
LEAST_NAME = 12
"""Cells that a name keeps, however narrow the terminal."""
GAP = 2
"""Cells between columns."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], top: int | None = None) -> RenderableType:
    """A titled table of at most ``top`` rows, which says how many it leaves out.

    Columns named like ``<word`` hold words, like ``<name…`` names that are cut where the terminal is narrow; the others
    hold numbers. A heading may have several lines.
    """
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    shown = [[printable(cell) for cell in row] for row in rows[:top]]
    least = -GAP
    for place, column in enumerate(columns):
        # Rich narrows columns that may wrap first; the cells themselves are cut instead of wrapped.
        words, cut, heading = column.startswith("<"), column.endswith("…"), column.strip("<…")
        width = max(map(cell_len, [*heading.split("\n"), *(row[place] for row in shown)]))
        width = min(width, LEAST_NAME) if cut else width
        made.add_column(heading, justify="left" if words else "right", no_wrap=not cut, min_width=width)
        least += width + GAP
    for row in shown:
        # Text, not str: a name like [red] or [/] is a name and no instruction to the terminal.
        made.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    parts: list[RenderableType] = [Text(title, style="bold"), _Uncut(made, least)]
    if top is not None and len(rows) > top:
        parts.append(Text(f"… and {plural(len(rows) - top, 'row')} more", style="dim"))
    return Group(*parts)


class _Uncut:
    """A table that is wider than a narrow terminal rather than without its figures."""

    def __init__(self, made: Table, least: int) -> None:
        self._made, self._least = made, least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._made, options.update_width(max(options.max_width, self._least)))


def lines(title: str, rows: Iterable[tuple[str, str, str]]) -> RenderableType:
    """A title, and under it a line for each thing worth knowing first: its name, its figure, what that means."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, figure, meaning in rows:
        grid.add_row(f"  {name}", Text(printable(figure)), Text(printable(meaning)))
    return Group(Text(printable(title), style="bold"), grid)


def notes(texts: Iterable[str]) -> RenderableType:
    """Sentences below each other."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for text in texts:
        grid.add_row("-", Text(printable(text), overflow="fold"))
    return Group(Text("Notes", style="bold"), grid)


def bar(share: float | None) -> str:
    """A share of one as a bar, to the eighth of a cell.

    >>> bar(0.5), bar(0.01), bar(None)
    ('████    ', '▏       ', '        ')
    """
    eighths = round(min(max(share or 0.0, 0.0), 1.0) * BAR * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + " ▏▎▍▌▋▊▉"[rest] * (rest > 0)).ljust(BAR)
