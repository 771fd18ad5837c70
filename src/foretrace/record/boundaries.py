"""Where a job's steps end, learnt from its optimizers.

A step of training ends with an optimizer's step. Where several optimizers take turns, it ends with the one that is
called least often: a GAN that updates its critic five times and its generator once has one step a generator update.
Gradient accumulation needs nothing: the optimizer is called once for all micro-batches. An optimizer that is called
several times for the same gradients, as DeepSpeed calls it once for each group of weights, ends the step with the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foretrace.record.optimizers import listen
from foretrace.record.outside import follow_compiled_calls

MANY_TIMES = 4
"""An optimizer that is called so many times as often as expected, with no forward in between, follows other rules."""


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


class Repeats:
    """Learns how often each optimizer is called for the same gradients, and which of these calls is the last.

    Whether there are other gradients shows in autograd's counter of forward calls. Where it never moves, as where the
    forward runs in another thread, every call is taken for the last.

    >>> repeats = Repeats()
    >>> [repeats.learn("adam", sequence)[1] for sequence in [10, 10, 20, 20, 30, 30, 40, 40]]
    [True, True, True, True, False, True, False, True]
    """

    def __init__(self) -> None:
        self._sequence = -1
        self._calls: dict[object, int] = {}
        """How often each optimizer was called for the gradients of now."""
        self._before: dict[object, int] = {}
        """How often it was for those before."""
        self._expected: dict[object, int] = {}

    def learn(self, optimizer: object, sequence: int) -> tuple[bool, bool]:
        """Note a call, and where autograd's counter stands.

        Returns
        -------
        Whether this shows that earlier calls were taken for what they were not, and whether this one is the last for
        its gradients.
        """
        before = dict(self._expected)
        if sequence != self._sequence:
            for who, calls in self._calls.items():
                if self._before.get(who) == calls:
                    self._expected[who] = calls
            self._before, self._calls, self._sequence = self._calls, {}, sequence
        calls = self._calls[optimizer] = self._calls.get(optimizer, 0) + 1
        expected = self._expected.get(optimizer, 1)
        if calls > MANY_TIMES * expected > MANY_TIMES:  # the counter has stopped
            self._expected[optimizer] = expected = 1
        changed = self._expected.get(optimizer, 1) != before.get(optimizer, 1)
        return changed, expected == 1 or calls == expected


def on_step_end(ended: Callable[[], None], start_over: Callable[[], None]) -> Callable[[], None]:
    """Call back at the end of each training step of the process. Returns what ends it.

    ``start_over`` is called before the end of the first step, and again where earlier ones turn out to be parts of one.
    """
    follow_compiled_calls()
    boundaries, repeats = Boundaries(), Repeats()

    def left(optimizer: Any) -> None:
        mistaken, last = repeats.learn(id(optimizer), torch.autograd._get_sequence_nr())
        if mistaken:
            start_over()
        if not last:
            return
        if boundaries.learn(id(optimizer)):
            start_over()
        if boundaries.last == id(optimizer):
            ended()

    return listen(left=left)
