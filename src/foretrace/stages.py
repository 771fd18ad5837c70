"""How far something is that takes long, in words, for who shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Stage(NamedTuple):
    """What is being done, and how many of its seconds have passed."""

    words: str
    seconds: float = 0.0
    of: float = 0.0
    """All of them; 0 where nobody knows."""


Told = Callable[[Stage], None]
