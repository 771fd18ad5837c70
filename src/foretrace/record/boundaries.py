"""Where a job's steps end, learnt from its optimizers.

A step of training ends with an optimizer's step. Where several optimizers take turns, it ends with the one that is
called least often: a GAN that updates its critic five times and its generator once has one step a generator update.
Gradient accumulation needs nothing: the optimizer is called once for all micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from foretrace.record.optimizers import listen


class Boundaries:
    """Tells from the sequence of optimizer calls which ones end a step.

    >>> boundaries = Boundaries()
    >>> [boundaries.ends_step(who) for who in ["critic", "critic", "generator"] * 3][-3:]
    [False, False, True]
    """

    def __init__(self) -> None:
        self._calls: Counter[object] = Counter()

    def ends_step(self, optimizer: object) -> bool:
        """Whether the call that this optimizer just finished ends a step."""
        self._calls[optimizer] += 1
        fewest = min(self._calls.values())
        # Those called equally often differ by one while a round is not over; the last of a round ends the step.
        rare = [who for who, count in self._calls.items() if count <= fewest + 1]
        return optimizer == rare[-1]


def on_step_end(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back at the end of each training step of the process. Returns what ends it."""
    boundaries = Boundaries()

    def after(optimizer: Any) -> None:
        if boundaries.ends_step(id(optimizer)):
            callback()

    return listen(after)
