"""`foretrace diff`: what got slower from one recording or trace to another, and what faster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.options import Html, Top, check_outputs, working
from foretrace.report import Format, show


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A recording, a trace, or a folder of them.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The one to compare with it.")],
    format: Format = "tables",
    html: Html = None,
    top: Top = 15,
) -> None:
    """Show what got slower from A to B, op by op."""
    check_outputs([before, after], html=html)
    from foretrace.analysis.compare import compare_steps
    from foretrace.api import load, observe

    with working("reading"):
        steps = observe(load(before)), observe(load(after))
        compared = compare_steps(*steps)
    if html is not None:
        from foretrace.report.pages.comparisons import comparison_page

        comparison_page(*steps, names=(Path(before).name, Path(after).name)).write(html)
    show(compared, format, top=top)
