"""Looking at what a user has at hand."""

from __future__ import annotations

from pathlib import Path

from foretrace.forecast.observation import Observation
from foretrace.forecast.observe import observe as observe_job
from foretrace.graph import Graph, Job
from foretrace.loading import load


def observe(what: Graph | Job | str | Path, step: str | None = None) -> Observation:
    """What a measured step took and why.

    Parameters
    ----------
    what
        A loaded recording or trace, or its path; a graph is a job of one rank.
    step
        Which step of a trace that holds several; the one of median length where it is left out.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0), Op("aten::relu", start_us=900.0, end_us=1500.0)])
    >>> observe(Graph(ops)).step_ms
    {0: 1.5}
    """
    return observe_job(what if isinstance(what, (Graph, Job)) else load(what), step)
