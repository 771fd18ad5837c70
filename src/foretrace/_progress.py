"""Progress of long work: one record and one signature, for progress bars on a terminal and lines in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """What is being done, and how many of its seconds have passed."""

    text: str
    seconds: float = 0.0
    of: float = 0.0
    """All of them; 0 where unknown."""


OnProgress = Callable[[Progress], None]
