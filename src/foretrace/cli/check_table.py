"""`foretrace check-table`: step times of a table against forecasts, and the software stack that fits them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.options import StackName, Top, check_outputs
from foretrace.report import Format, show


def check_table(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="A CSV file with columns model, gpu, ms and, if you like, parallel.")
    ],
    stack: StackName = "auto",
    fit: Annotated[float, typer.Option(metavar="SHARE", help="Fit a stack on this share of the rows: 0.33.")] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Write the fitted stack to this file, for --stack.")] = None,
    format: Format = "tables",
    top: Top = 30,
) -> None:
    """Compare a table of step times with predictions.

    It can also fit the constants of a cluster's software stack.
    """
    from foretrace._progress import Progress
    from foretrace.cli.progress import progress_bar
    from foretrace.errors import ForetraceError
    from foretrace.whatif.step_table import check_table as checked

    if out is not None and not fit:
        raise ForetraceError("--out is for a fitted stack", "Give --fit too, for instance --fit 1.")
    check_outputs([table, stack], stack=out)
    with progress_bar() as on_progress:
        name = out.stem if out else "fitted"
        result = checked(table, stack, fit, name, lambda what: on_progress(Progress(what)))
    if out is not None and result.stack is not None:
        result.stack.write(out)
        result.notes.append(f"the stack is in {out}: foretrace predict … --stack {out}")
    show(result, format, top=top)
