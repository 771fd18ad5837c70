"""A step as arrays: tasks, the lanes they run on, and the edges between them.

Every rule of the simulation is an edge: a thread or a stream runs its tasks in order, a kernel starts after its launch,
a sync waits for the kernels it names, a collective waits for its last rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Small = NDArray[np.int8]


class TaskKind(IntEnum):
    """The kind of a task: one of the five host overheads, a wait of the host, or work of the device."""

    BETWEEN_OPS = 0
    """T1: host time between two ops."""
    BEFORE_LAUNCH = 1
    """T2: from the start of an op to its first launch; all of an op that launches nothing."""
    AFTER_LAUNCH = 2
    """T3: from the last launch of an op to its end."""
    LAUNCH = 3
    """T4: inside a launch call."""
    BETWEEN_LAUNCHES = 4
    """T5: between two launches of one op."""
    SYNC = 5
    """The host waits for the device."""
    KERNEL = 6
    """A kernel, copy or memset; of a collective, its arrival on one rank, which takes no time."""
    TRANSFER = 7
    """The transfer of a collective, from the arrival of its last rank on: one task of all its ranks."""


T1, T2, T3, T4, T5, SYNC, KERNEL, TRANSFER = (int(kind) for kind in TaskKind)
"""The kinds as plain integers, for comparisons with arrays."""


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks in an order in which each comes after all it waits for.

    The tasks that task ``i`` waits for are ``before[first[i]:first[i + 1]]``; it starts no sooner than ``lag`` after
    each of them has ended.

    The tasks of several ranks stand one rank behind the other, in rows of tasks (``row_starts``). Each row is in order
    by itself; a task may also wait for one of another row, wherever that stands.

    >>> tasks = TaskGraph.of(duration=[2.0, 1.0, 4.0], lane=[0, 0, 1], edges=[(0, 1), (0, 2), (1, 2)])
    >>> tasks.before[tasks.first[2] : tasks.first[3]].tolist()
    [0, 1]
    """

    duration: Floats
    lane: Ints
    first: Longs
    before: Ints
    lag: Floats
    release: Floats = field(default_factory=lambda: np.zeros(0))
    """Earliest start of each task; empty where there is none."""
    row_starts: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    """Where each row of tasks (those of a rank, or a transfer) begins; empty where there is one row."""
    kind: Small = field(default_factory=lambda: np.zeros(0, np.int8))
    """The `TaskKind` of each task."""
    rank: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """Position of each task's graph in the job; of a transfer, that of the rank that arrived last. Empty for one
    rank."""
    op: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """The op that each task belongs to, where the tasks were made from priced ops."""
    row: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """Row of each task in the table of its rank's host segments or kernels; of a transfer, the last rank's kernel."""

    def __len__(self) -> int:
        return len(self.duration)

    @property
    def after(self) -> Ints:
        """For each entry of ``before``, the task that waits."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))

    @property
    def on_host(self) -> NDArray[np.bool_]:
        """Whether each task is host time, syncs included."""
        return self.kind <= SYNC

    @classmethod
    def of(
        cls,
        duration: list[float] | Floats,
        lane: list[int] | Ints,
        edges: list[tuple[int, int]] | Ints,
        lag: Floats | float = 0.0,
        *,
        kind: Small | None = None,
        rank: Ints | None = None,
        op: Ints | None = None,
        row: Ints | None = None,
    ) -> TaskGraph:
        """A task graph from (before, after) pairs, each with its lag; no task may wait for a later one."""
        pairs = np.asarray(edges, np.int32).reshape(-1, 2)
        _check_edges(pairs, len(duration))
        order = np.argsort(pairs[:, 1], kind="stable")
        first = np.zeros(len(duration) + 1, np.int64)
        np.cumsum(np.bincount(pairs[:, 1], minlength=len(duration)), out=first[1:])
        lags = np.broadcast_to(np.asarray(lag, np.float64), len(pairs))[order]
        return cls(
            np.asarray(duration, np.float64),
            np.asarray(lane, np.int32),
            first,
            pairs[order, 0].copy(),
            lags,
            kind=np.zeros(0, np.int8) if kind is None else kind,
            rank=np.zeros(0, np.int32) if rank is None else rank,
            op=np.zeros(0, np.int32) if op is None else op,
            row=np.zeros(0, np.int32) if row is None else row,
        )


def _check_edges(pairs: Ints, tasks: int) -> None:
    """Name an edge that no order of the tasks as they stand can satisfy."""
    if (wrong := np.flatnonzero((pairs[:, 0] >= pairs[:, 1]) | (pairs[:, 0] < 0) | (pairs[:, 1] >= tasks))).size:
        before, after = pairs[wrong[0]].tolist()
        if before >= tasks or after >= tasks or before < 0:
            raise ValueError(f"task {after} waits for task {before}, and there are {tasks} tasks")
        raise ValueError(f"task {after} waits for task {before}, which does not come before it")


class Timeline(NamedTuple):
    """Start and end of each task of a task graph, in microseconds."""

    start: Floats
    end: Floats

    @property
    def span(self) -> float:
        """First start to last end.

        >>> Timeline(np.array([1.0, 2.0]), np.array([3.0, 7.0])).span
        6.0
        """
        return float(self.end.max() - self.start.min()) if len(self.start) else 0.0


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
