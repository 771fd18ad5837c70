"""Progress of long work: one record and one signature, for progress bars on a terminal and lines in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """Progress of a long operation: what is being done, and how much of it, in seconds or in pieces of work."""

    text: str
    done: float = 0.0
    of: float = 0.0
    """All of it; 0 where unknown."""


OnProgress = Callable[[Progress], None]
