"""`foretrace whatif`: change a step on paper, and see its time change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.choices import AsJson
from foretrace.cli.predict import print_frames

Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="batch, seq, rows, dim, pooling, width, depth, dtype, optimizer, attention, checkpoint; may be repeated.",
    ),
]

Fuses = Annotated[
    list[str] | None,
    typer.Option("--fuse", metavar="WHAT", help="lookups, elementwise or optimizer, after --set; may be repeated."),
]

Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="OP[@MODULE]", help="Take calls out, before --fuse; may be repeated."),
]


def whatif(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="A recording, a trace, or a script with a make_step function.")
    ],
    on: Annotated[str, typer.Option(help="The platform: its name, or its folder.")] = "h200",
    sets: Sets = None,
    without: Without = None,
    fuse: Fuses = None,
    world: Annotated[int | None, typer.Option(min=1, help="Ranks that all do the same.")] = None,
    step: Annotated[str | None, typer.Option(help="Which step of a trace, for instance ProfilerStep#3.")] = None,
    json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file: it opens from disk.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table.")] = 10,
) -> None:
    """Change a step on paper, predict it before and after, and explain the difference by op.

    Changes are made in the order in which they are written; then calls are taken out, then fused.
    """
    from foretrace.graph import ForetraceError
    from foretrace.whatifs import whatif as ask

    changes = [*(sets or ()), *(f"without={op}" for op in without or ()), *(f"fuse={name}" for name in fuse or ())]
    try:
        told = ask(Path(what), on, changes, step, world)
    except ForetraceError as error:
        print_frames(error)
        raise
    if html is not None:
        from foretrace.report.page import write_comparison

        write_comparison(told.before, told.after, html, ("before", ", ".join(told.changes)))
    if json:
        from foretrace.report.json import as_json

        print(as_json(told))
    else:
        from foretrace.report.terminal import print_whatif

        print_whatif(told, top)
