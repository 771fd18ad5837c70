"""The pace of the original's host, in its own time.

A host that others use too is faster and slower from one moment to the next, and another machine's has a speed of its
own: the original would feel both. What turns of an idle loop took the original's host is known, and while a replay
waits it does such turns: by as much as they take longer here and now, so does everything that is due.
"""

from __future__ import annotations

from time import perf_counter_ns

TURNS = 25
"""As many as the recorder times at once."""
ADAPTED = 1.005
"""By so much what turns take is believed to be more, or less, each time that they took more, or less: that ends in
their median, and turns that somebody interrupted count like any others."""
SOUND_NS = (1.0, 1e4)
"""What a turn can take: another figure is none."""


class Pace:
    """Keeps a replay from running ahead of its original.

    Parameters
    ----------
    turn_ns
        What a turn of the loop took on the original's host; None where nobody knows: then its time is ours.
    """

    def __init__(self, turn_ns: float | None = None) -> None:
        sound = isinstance(turn_ns, (int, float)) and SOUND_NS[0] <= turn_ns <= SOUND_NS[1]
        self._turn_ns = turn_ns if sound else None
        self.slowness = 1.0
        """What the same work takes here, in times of what it took the original's host."""
        self._due = 0.0
        self._passed = 0.0
        """Time of the original, from the step's begin on: what is due, and what has passed."""
        self._seen = 0

    def begin(self) -> None:
        """A step begins: what is due is counted from here on."""
        self._due, self._passed, self._seen = 0.0, 0.0, perf_counter_ns()

    def wait(self, us: float) -> None:
        """Wait until as much time has passed since the last such place as the original's host took to come here.

        Whoever is late does not wait, and catches up.
        """
        self._due += us * 1000
        self._look()
        while self._passed < self._due:
            if self._turn_ns is not None:
                self._turn(self._turn_ns)
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

    def _turn(self, turn_ns: float) -> None:
        """Do some turns, and see how fast the host is; where there is no time left for that, it is not seen."""
        whole = TURNS * turn_ns
        if self._due - self._passed < whole:
            return
        began = perf_counter_ns()
        for _ in range(TURNS):
            perf_counter_ns()
        slower = perf_counter_ns() - began > whole * self.slowness
        self.slowness *= ADAPTED if slower else 1 / ADAPTED
