"""HTML pages of results: one file each, with their data and the scripts that draw it inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrace.report.pages.page import Page


def write_page(result: object, path: Path) -> None:
    """Write the page of a result; missing folders are made."""
    page_of(result).write(path)


def page_of(result: Any) -> Page:
    """The page of a step report, a what-if, a sweep, a scaling curve or a sharding plan.

    A predicted step is shown next to what was measured of its job.
    """
    # By the name of the class: a command loads only what it shows.
    match type(result).__name__:
        case "StepReport":
            from foretrace.report.pages.step import measured_with, step_page

            return step_page(result, measured_with(result) if result.predicted else None)
        case "WhatIf":
            from foretrace.report.pages.comparisons import comparison_page

            return comparison_page(result.before, result.after, ("before", ", ".join(result.changes)), result.notes)
        case "Scaling":
            from foretrace.report.pages.comparisons import scaling_page

            return scaling_page(result)
        case "Sweep":
            from foretrace.report.pages.comparisons import sweep_page

            return sweep_page(result)
        case "Sharding":
            from foretrace.report.sharding import sharding_page

            return sharding_page(result.report())
        case "FleetSummary":
            from foretrace.report.fleet import fleet_page

            return fleet_page(result)
        case "StragglerReport" | "StepList":
            from foretrace.report.fleet import straggler_page

            return straggler_page(getattr(result, "stragglers", result))
        case other:
            raise TypeError(f"there is no page of a {other}")
