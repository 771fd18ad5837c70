"""`foretrace predict`: how long a step takes on a machine that may not be here."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from foretrace.cli.choices import AsJson
from foretrace.cli.progress import progress_bar


class Kernels(StrEnum):
    """Where kernel times come from."""

    measured = "measured"
    model = "model"


def predict(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="A recording, a trace, or a script with a make_step function.")
    ],
    on: Annotated[str, typer.Option(help="The platform: its name, or its folder.")] = "h200",
    host: Annotated[str | None, typer.Option(help="Take the host of this platform instead.")] = None,
    json: AsJson = False,
    trace: Annotated[Path | None, typer.Option(help="Write the predicted timeline to this file, for Perfetto.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page to this file: it opens from disk.")] = None,
    kernels: Annotated[
        Kernels | None,
        typer.Option(help="Take measured or modelled kernel times; without it measured ones where they are its own."),
    ] = None,
    step: Annotated[str | None, typer.Option(help="Which step of a trace, for instance ProfilerStep#3.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table.")] = 10,
) -> None:
    """Predict how long a training step takes on a platform, and why.

    A script is sketched, not run: train.py, or train.py:make_step to name the function that builds or does a step.
    """
    from foretrace.forecast.predict import predict as forecast_of
    from foretrace.graph import ForetraceError, Job
    from foretrace.platforms import platform
    from foretrace.predicting import read

    with progress_bar() as told:  # a machine that was never measured is measured now
        where = platform(on, host, told=told)
    try:
        job = read(what, where.device.kind)
    except ForetraceError as error:
        print_frames(error)
        raise
    forecast = forecast_of(job, where, kernels.value if kernels else None, step)
    if trace is not None:
        from foretrace.formats.perfetto import write_perfetto

        assert forecast.timeline is not None
        write_perfetto(Job([forecast.timeline], forecast.source), trace)
    if html is not None:
        from foretrace.report.page import write_page

        write_page(forecast, html)
    if json:
        from foretrace.report.json import as_json

        print(as_json(forecast))
    else:
        from foretrace.report.terminal import print_forecast

        print_forecast(forecast, top)


def print_frames(error: Exception) -> None:
    """Where in a user's script something went wrong, if it was there."""
    from foretrace.report.names import printable

    for line in getattr(error, "frames", "").splitlines():
        print(printable(line), file=sys.stderr)
