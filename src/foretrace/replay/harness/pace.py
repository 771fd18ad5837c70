"""The pace of the original's host.

A replay's own calls do not take long enough: the original had modules, autograd and the Python of an optimizer between
them. So time is added where it is missing. How much is learnt from typical steps, and not from the clock of this one: a
host that others use is slow now and then, and then the replay shall be late, as the original would have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter_ns

MOST_STEPS, LEARNT_FROM = 32, 9
"""What is typical is learnt anew after 1, 2, 4, … steps, and in the end after every 32. It is learnt from the first
few of these steps only, since learning takes time as well."""
FAR = 4.0
"""A stretch that took so many times as long as usual was interrupted, and counts as one that took just that."""


class Pace:
    """Keeps a replay from running ahead of its original; the first step goes as fast as it can, and is learnt from."""

    def __init__(self) -> None:
        self.slowness = 1.0
        """How much longer the original's host takes than in its recording."""
        self._due: list[float] = []
        """Nanoseconds that the original's host took to each place where we may wait, from the one before."""
        self._first: set[int] = {0}
        """Places that are the first ones of a step, or after a wait for the device: nobody can be late there."""
        self._spent: list[float] = []
        self._steps: list[list[float]] = []
        """What we took ourselves in this step so far, and in the first steps since we last learnt what is typical."""
        self._since, self._learn_after = 0, 1
        """Steps since then, and how many it takes to learn again."""
        self._typical: list[float] = []
        self._waits: list[float] = []
        self._for = self.slowness
        """How long to wait in each place, for an original of that slowness."""
        self._seen = 0

    def begin(self) -> None:
        """A step begins."""
        if self._spent:
            self._since += 1
            if len(self._steps) < LEARNT_FROM:
                self._steps.append(self._spent)
            self._spent = []
        learn = self._since >= self._learn_after
        if learn:
            self._typical = typical(self._steps)
            self._steps, self._since = [], 0
            self._learn_after = min(self._learn_after * 2, MOST_STEPS)
        if self._typical and (learn or self._for != self.slowness):
            self._for = self.slowness
            self._waits = self._planned()
        self._seen = perf_counter_ns()

    def wait(self, us: float) -> None:
        """Wait for what the original's host took since the last such place, and we typically do not."""
        place, now = len(self._spent), perf_counter_ns()
        self._spent.append(float(now - self._seen))
        if place == len(self._due):
            self._due.append(us * 1000)
        if place < len(self._waits):
            until = now + self._waits[place]
            while now < until:
                now = perf_counter_ns()
        self._seen = now

    def resume(self) -> None:
        """The host has waited for the device: however long that was, the original's pace goes on from here."""
        self._first.add(len(self._spent))
        self._seen = perf_counter_ns()

    def _planned(self) -> list[float]:
        """How long to wait in each place."""
        ends = sorted(self._first | {len(self._typical)})
        parts = [slice(*bounds) for bounds in pairwise(ends)]
        due = [ns * self.slowness for ns in self._due]
        return [ns for part in parts for ns in waits(due[part], self._typical[part])]


def waits(due: Sequence[float], spent: Sequence[float]) -> list[float]:
    """How long to wait after each stretch, for them to take as long as they are due.

    >>> waits([10.0, 10.0, 30.0], [4.0, 10.0, 25.0])
    [6.0, 0.0, 5.0]

    Whoever comes late catches up, and who would be late in the end waits less before:

    >>> waits([10.0, 10.0, 10.0], [12.0, 3.0, 5.0]), waits([10.0, 10.0, 10.0], [4.0, 8.0, 14.0])
    ([0.0, 5.0, 5.0], [3.0, 1.0, 0.0])
    """
    found, behind = [], 0.0
    for wanted, took in zip(due, spent):
        behind += wanted - took
        found.append(max(behind, 0.0))
        behind = min(behind, 0.0)
    total = sum(found)
    left = max(1 + behind / total, 0.0) if total else 0.0
    return [ns * left for ns in found]


def typical(steps: Sequence[Sequence[float]]) -> list[float]:
    """What each stretch takes in a step that takes as long as the middle one of these.

    >>> typical([[10.0, 30.0], [20.0, 30.0], [30.0, 30.0]])
    [20.0, 30.0]

    Of a stretch that was slow once, some is typical, but the step as a whole is one that there was:

    >>> typical([[10.0, 30.0], [10.0, 30.0], [82.0, 30.0]])
    [16.0, 24.0]
    """
    means = [_mean(found) for found in zip(*steps)]
    total = sum(means)
    scale = median(sum(step) for step in steps) / total if total else 0.0
    return [mean * scale for mean in means]


def _mean(found: Sequence[float]) -> float:
    """The mean, where none counts more than several times the middle one."""
    most = FAR * median(found)
    return fmean(min(ns, most) for ns in found)
