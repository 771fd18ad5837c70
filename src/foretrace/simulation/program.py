"""A step as arrays: tasks, the lanes they run on, and who must wait for whom."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from foretrace.simulation.turns import Floats, Ints, Longs


@dataclass(frozen=True)
class Program:
    """Tasks in an order in which each comes after all it waits for.

    The tasks that task ``i`` waits for are ``before[first[i]:first[i + 1]]``; it starts no sooner than ``lag`` after
    each of them has ended.

    A program may have several rows of tasks, one behind the other. Each is in order by itself; a task may also wait for
    one of another row, wherever that stands.

    >>> program = Program.of(duration=[2.0, 1.0, 4.0], lane=[0, 0, 1], edges=[(0, 1), (0, 2), (1, 2)])
    >>> program.before[program.first[2] : program.first[3]].tolist()
    [0, 1]
    """

    duration: Floats
    lane: Ints
    first: Longs
    before: Ints
    lag: Floats
    release: Floats = field(default_factory=lambda: np.zeros(0))
    """Before when each task does not start; empty where all may at once."""
    rows: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    """Where each row of tasks begins; empty where there is one."""

    def __len__(self) -> int:
        return len(self.duration)

    @property
    def after(self) -> Ints:
        """For each entry of ``before``, the task that waits."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.first))

    @classmethod
    def of(
        cls,
        duration: list[float] | Floats,
        lane: list[int] | Ints,
        edges: list[tuple[int, int]] | Ints,
        lag: Floats | float = 0.0,
    ) -> Program:
        """A program of (before, after) pairs, each with its lag; no task may wait for a later one."""
        pairs = np.asarray(edges, np.int32).reshape(-1, 2)
        _check(pairs, len(duration))
        order = np.argsort(pairs[:, 1], kind="stable")
        first = np.zeros(len(duration) + 1, np.int64)
        np.cumsum(np.bincount(pairs[:, 1], minlength=len(duration)), out=first[1:])
        lags = np.broadcast_to(np.asarray(lag, np.float64), len(pairs))[order]
        return cls(np.asarray(duration, np.float64), np.asarray(lane, np.int32), first, pairs[order, 0].copy(), lags)


def _check(pairs: Ints, tasks: int) -> None:
    """Name an edge that no order of the tasks as they stand can satisfy."""
    if (wrong := np.flatnonzero((pairs[:, 0] >= pairs[:, 1]) | (pairs[:, 0] < 0) | (pairs[:, 1] >= tasks))).size:
        before, after = pairs[wrong[0]].tolist()
        if before >= tasks or after >= tasks or before < 0:
            raise ValueError(f"task {after} waits for task {before}, and there are {tasks} tasks")
        raise ValueError(f"task {after} waits for task {before}, which does not come before it")


@dataclass(frozen=True)
class Timeline:
    """When each task of a program started and ended."""

    start: Floats
    end: Floats

    @property
    def span(self) -> float:
        """First start to last end.

        >>> Timeline(np.array([1.0, 2.0]), np.array([3.0, 7.0])).span
        6.0
        """
        return float(self.end.max() - self.start.min()) if len(self.start) else 0.0
