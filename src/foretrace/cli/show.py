"""`foretrace show`: where the step of a recording or a trace goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.choices import AsJson, rank_numbers
from foretrace.cli.outputs import check_outputs


def show(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="A recording, a trace, a folder of them, or the traces of several ranks."),
    ],
    json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file: it opens from disk.")] = None,
    step: Annotated[str | None, typer.Option(help="Name of the step, for instance ProfilerStep#3.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Only these ranks, for instance 0-2,4.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table.")] = 10,
) -> None:
    """Show where the time of a step goes.

    By op, kernel family, phase and module; host overheads; who waits for whom; the critical path across all ranks.
    """
    check_outputs(paths, html=html)
    import foretrace as ft

    report = ft.observe(ft.load(*paths, ranks=rank_numbers(ranks)), step)
    from foretrace.report import show as show_result

    show_result(report, json, html, top)
