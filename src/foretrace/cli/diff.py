"""`foretrace diff`: what got slower from one recording or trace to another, and what faster."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrace.cli.choices import AsJson


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A recording, a trace, or a folder of them.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to hold against it.")],
    json: AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table.")] = 15,
) -> None:
    """Show what got slower from A to B, op by op."""
    import foretrace as ft

    difference = ft.difference(ft.observe(ft.load(before)), ft.observe(ft.load(after)))
    from foretrace.report import show

    show(difference, json, top=top)
