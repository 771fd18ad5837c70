"""Where a job's steps end, learnt from its optimizers.

A step of training ends with an optimizer's step. Where several optimizers take turns, it ends with the one that is
called least often: a GAN that updates its critic five times and its generator once has one step a generator update.
Gradient accumulation needs nothing: the optimizer is called once for all micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foretrace.record.optimizers import listen


class Boundaries:
    """Learns from the sequence of optimizer calls which optimizer ends a step.

    The one that came last is taken for it, until another turns out to be called less often. One that is no longer
    called at all changes nothing.

    >>> boundaries = Boundaries()
    >>> [boundaries.learn(who) for who in ["critic", "critic", "generator"] * 2]
    [True, False, True, False, False, False]
    >>> boundaries.last
    'generator'
    """

    def __init__(self) -> None:
        self.last: object = None
        """The optimizer whose call is the last one of a step."""
        self._steps_since: dict[object, int] = {}
        """How many steps ended since each optimizer was called."""

    def learn(self, optimizer: object) -> bool:
        """Note a call. Tells whether it shows that what was taken for steps so far were none."""
        if optimizer == self.last:
            self._steps_since = {who: count + 1 for who, count in self._steps_since.items()}
        less_often = optimizer not in self._steps_since or self._steps_since[optimizer] > 1
        changed = optimizer != self.last and less_often
        if changed:
            self.last = optimizer
            self._steps_since = dict.fromkeys(self._steps_since, 0)
        self._steps_since[optimizer] = 0
        return changed


def on_step_end(ended: Callable[[], None], start_over: Callable[[], None]) -> Callable[[], None]:
    """Call back at the end of each training step of the process. Returns what ends it.

    ``start_over`` is called before the end of the first step, and again where earlier ones turn out to be parts of one.
    """
    boundaries = Boundaries()

    def after(optimizer: Any) -> None:
        if boundaries.learn(id(optimizer)):
            start_over()
        if boundaries.last == id(optimizer):
            ended()

    return listen(after)
