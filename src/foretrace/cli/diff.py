"""`foretrace diff`: what got slower from one recording or trace to another, and what faster."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrace.cli.options import AsJson, Top, working


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A recording, a trace, or a folder of them.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    json: AsJson = False,
    top: Top = 15,
) -> None:
    """Show what got slower from A to B, op by op."""
    from foretrace.analysis.compare import compare_steps
    from foretrace.api import load, observe
    from foretrace.report import show

    with working("reading"):
        compared = compare_steps(observe(load(before)), observe(load(after)))
    show(compared, json, top=top)
