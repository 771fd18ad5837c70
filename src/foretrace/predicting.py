"""Predicting what a user has at hand, on a platform by whatever it is called."""

from __future__ import annotations

from pathlib import Path

from foretrace.forecast.forecast import Forecast
from foretrace.forecast.predict import predict as forecast_of
from foretrace.graph import Graph, Job
from foretrace.loading import load
from foretrace.platform.platform import Platform
from foretrace.platforms import platform


def predict(
    what: Graph | Job | str | Path,
    on: Platform | str | Path = "h200",
    kernels: str | None = None,
    step: str | None = None,
) -> Forecast:
    """How long a training step takes on a platform, and why.

    Parameters
    ----------
    what
        A sketch, a loaded recording or trace; or the path of a recording, of a trace, or of a script, ``train.py`` or
        ``train.py:function``, whose step is sketched. Of a job of several ranks, the first one is predicted, alone.
    on
        A platform, its name, or its folder.
    kernels
        ``"measured"`` takes the kernel times of the recording, ``"model"`` those of the platform's models. Left out,
        the recording's are taken where it was made on the platform's own device.
    step
        Which step of a trace that holds several; the one of median length where it is left out.

    Returns
    -------
    The forecast: step time with its range, device time, idle time and its causes, memory, critical path, and how much
    of the device time is known in which way.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> forecast = predict(Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))])), on="h200")
    >>> 0.1 < forecast.device_active_ms < 1.0
    True
    """
    where = platform(on)
    job = what if isinstance(what, (Graph, Job)) else read(what, where.device.kind)
    return forecast_of(job, where, kernels, step)


def read(what: str | Path, device: str = "cuda") -> Job:
    """Read or sketch a step.

    Parameters
    ----------
    what
        A recording's folder; a trace; or a script, ``train.py`` or ``train.py:function``, whose step is sketched.
    device
        The kind of device that a script shall find: ``"cuda"``, with or without a GPU, or ``"cpu"``.
    """
    script, _, function = str(what).partition(".py:")
    if not function and not str(what).endswith(".py"):
        return load(what)
    from foretrace.record.script import sketch_script  # here, since it brings torch

    path = Path(f"{script}.py" if function else script)
    graph = sketch_script(path, function or None, "cuda" if device == "cuda" else None)
    return Job([graph], graph.source)
