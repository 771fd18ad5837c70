"""What was found as a page: one file that opens from disk and loads nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foretrace.forecast.check import check
from foretrace.forecast.forecast import Forecast
from foretrace.forecast.jobs.scaling import Scaling
from foretrace.forecast.observation import Observation
from foretrace.forecast.observe import observe
from foretrace.report.json import Document
from foretrace.report.pages.comparison import comparison_page
from foretrace.report.pages.forecast import Measured, forecast_page, measured_there
from foretrace.report.pages.observation import observation_page
from foretrace.report.pages.scaling import scaling_page
from foretrace.report.pages.sharding import sharding_page
from foretrace.report.pages.sweep import sweep_page


def write_page(forecast: Forecast, path: Path) -> None:
    """Write the page of a forecast; where its job was measured as well, that is shown beside. Folders are made."""
    forecast_page(forecast, measured_beside(forecast)).write(path)


def write_observation(seen: Observation, path: Path) -> None:
    """Write the page of a measured step."""
    observation_page(seen).write(path)


def write_comparison(
    before: Forecast, after: Forecast, path: Path, names: tuple[str, str] = ("before", "after")
) -> None:
    """Write the page of two forecasts held against each other."""
    comparison_page(before, after, names).write(path)


def write_scaling(curve: Scaling, path: Path) -> None:
    """Write the page of a scaling curve."""
    scaling_page(curve).write(path)


def write_sharding(sharding: Document, path: Path) -> None:
    """Write the page of a sharding plan."""
    sharding_page(sharding.to_dict()).write(path)


def write_sweep(sweep: Document, path: Path) -> None:
    """Write the page of a sweep."""
    sweep_page(sweep.to_dict()).write(path)


def measured_beside(forecast: Forecast) -> Measured | None:
    """What was measured of the job that was predicted; None for a sketch, of which nothing was.

    >>> measured_beside(Forecast()) is None
    True
    """
    made_of = forecast.workings
    if made_of is None or made_of.job is None:
        return None
    job = made_of.job
    if not any(np.isfinite(graph.ops.start).any() for graph in job.graphs):
        return None
    plain = len(job.graphs) == 1 and job.graphs[0].plain.synced_ms and measured_there(forecast)
    return observe(job, made_of.step), check(forecast, job) if plain else None
