"""How fast the host is at the moment: it is shared, and neighbours make the same work take half as long again."""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns

TRIES, TURNS = 5, 25


def turn_ns() -> float:
    """What a turn of an idle loop takes now, where nobody interrupts it; a replay waits in such turns."""
    return median(_timed() for _ in range(TRIES)) / TURNS


def _timed() -> int:
    began = perf_counter_ns()
    for _ in range(TURNS):
        perf_counter_ns()
    return perf_counter_ns() - began
