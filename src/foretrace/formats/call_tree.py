"""Who called whom, from start and end times alone: on one thread, intervals nest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrace.graph.tables import Floats, Ints, distinct

ROUNDING_US = 1.0
"""How far an event may stick out of the one around it when stamps are whole microseconds."""


def call_order(start: Floats, end: Floats, number: NDArray[np.int64] | None = None) -> NDArray[np.intp]:
    """Rows by start time, the longer of two that start together first: a parent comes before its children.

    Where the profiler numbered calls as they came, that decides first between two that start together: stamps of
    whole microseconds make many of them.

    >>> call_order(np.array([5.0, 0.0, 0.0]), np.array([6.0, 2.0, 9.0])).tolist()
    [2, 1, 0]
    >>> call_order(np.array([0.0, 0.0]), np.array([1.0, 0.0]), np.array([8, 7])).tolist()
    [1, 0]
    """
    return np.lexsort((-end, start) if number is None else (-end, number, start))


def parents(thread: Ints, start: Floats, end: Floats) -> Ints:
    """For rows in call order, the innermost row around each on its thread; -1 for none.

    >>> parents(np.zeros(3, np.int32), np.array([0.0, 1.0, 5.0]), np.array([9.0, 4.0, 6.0])).tolist()
    [-1, 0, 0]
    """
    parent = np.full(len(start), -1, np.int32)
    for code in distinct(thread):
        rows = np.flatnonzero(thread == code)
        parent[rows] = _nested(rows.tolist(), start[rows].tolist(), end[rows].tolist())
    return parent


def _nested(rows: list[int], starts: list[float], ends: list[float]) -> list[int]:
    found: list[int] = []
    open_rows, open_ends = [-1], [np.inf]
    for row, start, end in zip(rows, starts, ends):
        while open_ends[-1] <= start:
            open_rows.pop()
            open_ends.pop()
        found.append(open_rows[-1])
        limit = open_ends[-1]
        # A row that sticks out by rounding must not seem to hold what comes after its parent.
        open_ends.append(limit if limit < end <= limit + ROUNDING_US else end)
        open_rows.append(row)
    return found


def innermost(thread: Ints, start: Floats, end: Floats, parent: Ints, at_thread: Ints, at: Floats) -> Ints:
    """The innermost row open on a thread at a time; -1 for none. Rows are in call order.

    >>> rows = np.zeros(2, np.int32), np.array([0.0, 1.0]), np.array([9.0, 4.0]), np.array([-1, 0], np.int32)
    >>> innermost(*rows, np.zeros(3, np.int32), np.array([2.0, 5.0, 20.0])).tolist()
    [1, 0, -1]
    """
    found = np.full(len(at), -1, np.int32)
    for code in distinct(at_thread):
        rows, asked = np.flatnonzero(thread == code), np.flatnonzero(at_thread == code)
        if not len(rows):
            continue
        before = np.searchsorted(start[rows], at[asked], side="right") - 1
        row = np.where(before >= 0, rows[before], -1)
        # Stamps of whole microseconds put what an op does last at the op's very end: it counts as inside where
        # nothing else is open.
        ending = np.full(len(asked), -1)
        closed = np.flatnonzero((row >= 0) & (end[row] <= at[asked]))
        while len(closed):
            touched = closed[(end[row[closed]] == at[asked[closed]]) & (ending[closed] < 0)]
            ending[touched] = row[touched]
            row[closed] = parent[row[closed]]
            closed = closed[(row[closed] >= 0) & (end[row[closed]] <= at[asked[closed]])]
        found[asked] = np.where(row >= 0, row, ending)
    return found
