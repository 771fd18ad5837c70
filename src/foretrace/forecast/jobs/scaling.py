"""How a step takes longer as its job grows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace.forecast.forecast import Forecast
from foretrace.forecast.in_notebooks import InNotebooks
from foretrace.forecast.notes import said_alike
from foretrace.forecast.observation import Rows, plain


@dataclass
class Scaling(InNotebooks):
    """Forecasts of one step in jobs of several sizes."""

    source: str = ""
    platform: str = ""
    rows: Rows = field(default_factory=list)
    """world, fabric, step_ms, low_ms, high_ms, device_active_ms, exposed_communication_ms, hidden_communication_ms,
    efficiency (the step of the smallest job over this one's)"""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: ``scaling`` is the list to plot."""
        return {"source": self.source, "platform": self.platform, "scaling": plain(self.rows), "notes": self.notes}


ALIKE = re.compile(r"ranks (that )?do the same")
"""Notes that a curve says by its first column."""
WORDS = (
    "world", "fabric", "step_ms", "low_ms", "high_ms", "device_active_ms", "exposed_communication_ms",
    "hidden_communication_ms",
)  # fmt: skip


def scaling_of(forecasts: Sequence[Forecast]) -> Scaling:
    """The curve that some forecasts make.

    >>> scaling_of([Forecast(world=1, step_ms=4.0), Forecast(world=2, step_ms=5.0)]).rows[1]["efficiency"]
    0.8
    """
    ordered = sorted(forecasts, key=lambda forecast: forecast.world)
    smallest = ordered[0]
    rows: Rows = []
    for forecast in ordered:
        row = {word: getattr(forecast, word) for word in WORDS}
        row["efficiency"] = smallest.step_ms / forecast.step_ms if forecast.step_ms else 1.0
        rows.append(row)
    return Scaling(smallest.source, smallest.platform, rows, _notes_of(ordered))


def _notes_of(ordered: Sequence[Forecast]) -> list[str]:
    """What they all say: of notes that differ in numbers alone the largest job's, which says enough.

    >>> _notes_of([Forecast(notes=["a100-8x on 2 nodes"]), Forecast(notes=["a100-8x on 4 nodes", "a100-4x on 4"])])
    ['a100-8x on 4 nodes', 'a100-4x on 4']
    """
    said = {said_alike(note): note for forecast in ordered for note in forecast.notes if not ALIKE.search(note)}
    return list(said.values())
