"""What a calibration has measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from foretrace.report.numbers import percent
from foretrace.report.tables import table

if TYPE_CHECKING:
    from foretrace.platform.measure.calibrate import Progress


def measured_families(done: Sequence[Progress]) -> RenderableType:
    """A line per family that anything was measured of: calls, failures, seconds, how far repeats lie apart."""
    rows = [
        [one.family, f"{one.cases:,}", f"{one.failed:,}", f"{one.seconds:.1f}", percent(one.spread)]
        for one in done
        if one.cases + one.failed
    ]
    return table("Measured", ["<family", "calls", "failed", "seconds", "spread"], rows)
