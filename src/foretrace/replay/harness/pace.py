"""The pace of the original's host, in its own time.

A host that others use too is faster and slower from one moment to the next, and another machine's has a speed of its
own: the original would feel both. What small calls took the original's host before its steps is known, and a replay
makes the same calls where its steps begin: by as much as they take longer here and now, so does everything that is due.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from time import perf_counter_ns

import torch

CALLS = 8
"""As many as the recorder times at once, after as many that it does not time: the host was at something else."""
STEPS = 15
"""The last steps, whose middle one says how fast the host is: one of them alone may have been interrupted."""
SOUND_NS = (10.0, 1e6)
"""What a call can take: another figure is none."""


class Pace:
    """Keeps a replay from running ahead of its original.

    Parameters
    ----------
    call_ns
        What a small call took on the original's host; None where nobody knows: then its time is ours.
    """

    def __init__(self, call_ns: float | None = None) -> None:
        sound = isinstance(call_ns, (int, float)) and SOUND_NS[0] <= call_ns <= SOUND_NS[1]
        self._call_ns = call_ns if sound else None
        self.slowness = 1.0
        """What the same work takes here, in times of what it took the original's host."""
        self._felt: deque[float] = deque(maxlen=STEPS)
        self._due = 0.0
        self._passed = 0.0
        """Time of the original, from the step's begin on: what is due, and what has passed."""
        self._seen = 0

    def begin(self) -> None:
        """A step begins: what is due is counted from here on."""
        self._due, self._passed, self._seen = 0.0, 0.0, perf_counter_ns()
        if self._call_ns is not None:
            self._felt.append(small_call_ns() / self._call_ns)
            self.slowness = median(self._felt)

    def wait(self, us: float) -> None:
        """Wait until as much time has passed since the last such place as the original's host took to come here.

        Whoever is late does not wait, and catches up.
        """
        self._due += us * 1000
        self._look()
        while self._passed < self._due:
            self._look()

    def resume(self) -> None:
        """The host has waited for the device: however long that was, the original's pace goes on from here."""
        self._look()
        self._due = max(self._due, self._passed)

    def _look(self) -> None:
        """Look at the clock: so much of the original's time has passed."""
        now = perf_counter_ns()
        self._passed += (now - self._seen) / self.slowness
        self._seen = now


def small_call_ns() -> float:
    """What a small call takes now."""
    for _ in range(CALLS):
        torch.empty(1)
    began = perf_counter_ns()
    for _ in range(CALLS):
        torch.empty(1)
    return (perf_counter_ns() - began) / CALLS
