"""`foretrace predict`: how long a step takes on a machine that may not be here."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrace.cli.choices import AsJson
from foretrace.cli.progress import progress_bar

if TYPE_CHECKING:
    from foretrace.forecast.forecast import Forecast


class Kernels(StrEnum):
    """Where kernel times come from."""

    measured = "measured"
    model = "model"


def predict(
    what: Annotated[
        str, typer.Argument(metavar="WHAT", help="A recording, a trace, or a script with a make_step function.")
    ],
    on: Annotated[
        str | None,
        typer.Option(help="The platform: its name, or its folder. Without it a profiled job keeps its own machine."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Take the host of this platform instead.")] = None,
    fabric: Annotated[
        str | None, typer.Option(help="What joins the ranks: a fabric's or a platform's name, or a fabric's file.")
    ] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="Ranks that share a node.")] = None,
    world: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="Ranks that all do the same: 64, or 1,2,4,...,1024 for a scaling curve."),
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(metavar="WAYS", help="Share the step of one rank: data=8,tensor=2,pipeline=4,microbatches=16."),
    ] = None,
    slow_host: Annotated[
        list[str] | None, typer.Option(metavar="RANK=TIMES", help="This rank's host takes so many times as long.")
    ] = None,
    host_of: Annotated[
        list[str] | None, typer.Option(metavar="RANK=RANK", help="The first rank is given the host of the second.")
    ] = None,
    slow_link: Annotated[
        list[str] | None, typer.Option(metavar="RANK=PART", help="This rank's link has so much of its speed.")
    ] = None,
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
    from foretrace import predicting
    from foretrace.cli.parallel import shared
    from foretrace.forecast.jobs.world import worlds
    from foretrace.graph import ForetraceError

    sizes = worlds(world) if world else []
    options: dict[str, Any] = {
        "host": host, "fabric": fabric, "gpus_per_node": gpus_per_node, "step": step,
        "kernels": kernels.value if kernels else None, "slow_host": _numbers(slow_host, float),
        "host_of": _numbers(host_of, int), "slow_link": _numbers(slow_link, float),
    }  # fmt: skip
    try:
        with progress_bar() as told:  # a machine that was never measured is measured now
            given = shared(what, parallel, on, told) if parallel else what
            if len(sizes) < 2:
                forecast = predicting.predict(given, on, world=sizes[0] if sizes else None, told=told, **options)
            else:
                curve = predicting.scaling(given, sizes, on, told=told, **options)
    except ForetraceError as error:
        print_frames(error)
        raise
    if len(sizes) < 2:
        _show(forecast, json, trace, html, top)
        return
    if html is not None:
        from foretrace.report.page import write_scaling

        write_scaling(curve, html)
    if json:
        from foretrace.report.json import as_json

        print(as_json(curve))
    else:
        from foretrace.report.terminal import print_scaling

        print_scaling(curve)


def _show(forecast: Forecast, json: bool, trace: Path | None, html: Path | None, top: int) -> None:
    if trace is not None:
        from foretrace.formats.perfetto import write_perfetto
        from foretrace.graph import Job

        assert forecast.workings is not None
        write_perfetto(Job(forecast.workings.graphs, forecast.source), trace)
    if html is not None:
        from foretrace.report.page import write_page

        write_page(forecast, html)
    if json:
        from foretrace.report.json import as_json

        print(as_json(forecast))
    else:
        from foretrace.report.terminal import print_forecast

        print_forecast(forecast, top)


def _numbers(said: list[str] | None, kind: type) -> dict[int, Any]:
    """The ranks that options name, and the number of each."""
    from foretrace.graph import ForetraceError

    found = {}
    for one in said or ():
        rank, _, number = one.partition("=")
        try:
            found[int(rank)] = kind(number)
        except ValueError:
            raise ForetraceError(f"{one!r} names no rank and its number", "Say for instance 3=1.2.") from None
    return found


def print_frames(error: Exception) -> None:
    """Where in a user's script something went wrong, if it was there."""
    from foretrace.report.names import printable

    for line in getattr(error, "frames", "").splitlines():
        print(printable(line), file=sys.stderr)
