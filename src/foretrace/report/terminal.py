"""What was found, in the terminal: the answer first, then the tables behind it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType

from foretrace.report.changes import changes
from foretrace.report.headline import headline
from foretrace.report.json import Document
from foretrace.report.sections import sections


def print_observation(observation: Document, top: int, console: Console | None = None) -> None:
    """Print what was seen of a step, with at most ``top`` rows a table."""
    words = observation.to_dict()
    _print([headline(words), *sections(words, top)], console)


def print_difference(difference: Document, top: int, console: Console | None = None) -> None:
    """Print what changed from one step to another, with at most ``top`` rows a table."""
    _print(changes(difference.to_dict(), top), console)


def _print(blocks: Iterable[RenderableType], console: Console | None) -> None:
    console = console or Console(highlight=False, emoji=False)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        console.print(block)
