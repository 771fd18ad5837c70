"""Sets of time intervals as two arrays, starts and ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.simulation.task_graph import Floats, Longs


def outermost(start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Which of the intervals, sorted by start, begin when all earlier ones have ended.

    >>> outermost(np.array([0.0, 1.0, 4.0]), np.array([4.0, 3.0, 5.0])).tolist()
    [True, False, True]
    """
    ended = np.maximum.accumulate(end)
    free = np.ones(len(start), bool)
    free[1:] = start[1:] >= ended[:-1]
    return free


def merged(start: Floats, end: Floats) -> tuple[Floats, Floats, Longs]:
    """Intervals with those that overlap joined, in time order, and for each the input that begins it.

    >>> merged(np.array([5.0, 0.0, 1.0]), np.array([6.0, 2.0, 3.0]))
    (array([0., 5.]), array([3., 6.]), array([1, 0]))
    """
    in_order = bool((start[1:] > start[:-1]).all())
    order = np.arange(len(start)) if in_order else np.lexsort((-end, start))
    first = np.flatnonzero(outermost(start[order], end[order]))
    if not len(first):
        return start, end, order
    return start[order[first]], np.maximum.reduceat(end[order], first), order[first]


def total(start: Floats, end: Floats) -> float:
    """Time covered by at least one of the intervals.

    >>> total(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    4.0
    """
    start, end, _ = merged(start, end)
    return float((end - start).sum())


def shared(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> float:
    """Time covered by both of two sets of intervals.

    >>> shared((np.array([0.0]), np.array([4.0])), (np.array([1.0, 3.0]), np.array([2.0, 9.0])))
    2.0
    """
    both = total(np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))
    return total(*one) + total(*other) - both


def previous_on_lane(lane: NDArray[np.int32], start: Floats) -> Longs:
    """For each interval, the one that started before it on the same lane; -1 for the first.

    >>> previous_on_lane(np.array([7, 20, 7]), np.array([0.0, 1.0, 2.0])).tolist()
    [-1, -1, 0]
    """
    order = np.lexsort((start, lane))
    previous = np.full(len(lane), -1, np.int64)
    same = lane[order[1:]] == lane[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous
