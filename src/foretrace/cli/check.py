"""`foretrace check`: hold a forecast against the plain steps of the recording it was made for."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrace.cli.choices import AsJson


def check(
    recording: Annotated[str, typer.Argument(metavar="RECORDING", help="A folder that `foretrace record` wrote.")],
    on: Annotated[str, typer.Option(help="The platform it was recorded on: its name, or its folder.")] = "h200",
    json: AsJson = False,
    top: Annotated[int, typer.Option(min=1, help="How many rows of each table.")] = 15,
) -> None:
    """Compare the forecast for a recorded step with what the step took, op by op, the largest misses first.

    The forecast knows the recording's calls, and none of its times.
    """
    from foretrace.analysis.compare import check_prediction as compare
    from foretrace.api import load, predict
    from foretrace.report import show

    job = load(recording)
    found = compare(predict(job, on, kernels="model"), job)
    show(found, json, top=top)
