"""Tables that fit eighty columns: numbers keep their width, names give way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretrace.report.names import printable
from foretrace.report.numbers import plural

BAR = 8
"""Cells of a full bar."""


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], top: int | None = None) -> RenderableType:
    """A titled table of at most ``top`` rows, which says how many it leaves out.

    Columns named like ``<word`` hold words, like ``<name…`` names that are cut where the terminal is narrow; the others
    hold numbers.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    shown = rows[:top]
    for column in columns:
        # Rich narrows columns that may wrap first; the cells themselves are cut instead of wrapped.
        words, cut = column.startswith("<"), column.endswith("…")
        made.add_column(column.strip("<…"), justify="left" if words else "right", no_wrap=not cut)
    for row in shown:
        # Text, not str: a name like [red] or [/] is a name and no instruction to the terminal.
        made.add_row(*(Text(printable(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    parts: list[RenderableType] = [Text(title, style="bold"), made]
    if top is not None and len(rows) > top:
        parts.append(Text(f"… and {plural(len(rows) - top, 'row')} more", style="dim"))
    return Group(*parts)


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
