"""`foretrace check`: compare a prediction with the unprofiled steps of the recording it was made for."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrace.cli.options import Top, working
from foretrace.report import Format, show


def check(
    recording: Annotated[str, typer.Argument(metavar="RECORDING", help="A folder that `foretrace record` wrote.")],
    on: Annotated[str, typer.Option(help="The platform it was recorded on: its name, or its folder.")] = "h200",
    format: Format = "tables",
    top: Top = 15,
) -> None:
    """Compare a prediction with the measured step.

    Op by op, the largest errors first. The prediction uses the recording's calls, and none of its times.
    """
    from foretrace.analysis.compare import check_prediction
    from foretrace.api import load, predict
    from foretrace.errors import ForetraceError
    from foretrace.platform.registry import load_platform

    with working("predicting"):
        job, where = load(recording), load_platform(on)
        if where.device.kind != "cpu" and all(graph.lies_on_host for graph in job.graphs):
            raise ForetraceError(
                f"{recording} was recorded on a CPU, and {where.name} is a GPU: no prediction can be checked",
                "`foretrace calibrate cpu` measures this CPU once, in 3 minutes; then check it with --on cpu.",
            )
        checked = check_prediction(predict(job, where, kernels="model"), job)
    show(checked, format, top=top)
