"""Step boundaries of a job, learnt from its optimizers.

A training step ends with an optimizer's step. Where several optimizers take turns, it ends with the one that is called
least often: a GAN that updates its critic five times and its generator once has one step per generator update. Gradient
accumulation needs nothing: the optimizer is called once for all micro-batches. An optimizer that is called several
times for the same gradients, as DeepSpeed calls it once for each group of weights, ends the step with the last call.

PyTorch's list of optimizer hooks must not change while it is iterated, and code that torch.compile has traced is traced
again when it does. So one pair of hooks is registered for good, and listeners come and go behind it; without listeners
it does nothing. Steps inside compiled code call no hook: the compiled code raises a flag instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch

from foretrace.record.watch.compiled_calls import SIGNALS, deferring, follow_compiled_calls, on_signal, run_outside

MAX_CALL_RATIO = 4
"""Calls of an optimizer for the same gradients, over the learned number, above which autograd's counter of forward
calls must have stopped: what was learned from it is dropped."""
Callback = Callable[[Any], None]

COMPILED = "an optimizer in compiled code"
"""Passed to listeners in place of an optimizer whose step was compiled: which one it was is unknown."""


class Boundaries:
    """Learns from the sequence of optimizer calls which optimizer ends a step.

    The one that came last is taken for it, until another turns out to be called less often. One that is no longer
    called at all changes nothing.

    >>> boundaries = Boundaries()
    >>> [boundaries.learn(name) for name in ["critic", "critic", "generator"] * 2]
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
        """Note an optimizer call. Returns whether it shows that the steps counted so far were wrong."""
        if optimizer == self.last:
            self._steps_since = {key: count + 1 for key, count in self._steps_since.items()}
        less_often = optimizer not in self._steps_since or self._steps_since[optimizer] > 1
        changed = optimizer != self.last and less_often
        if changed:
            self.last = optimizer
            self._steps_since = dict.fromkeys(self._steps_since, 0)
        self._steps_since[optimizer] = 0
        return changed


class CallsPerGradients:
    """Learns how often each optimizer is called for the same gradients, and which of these calls is the last one.

    Whether there are other gradients shows in autograd's counter of forward calls. Where it never moves, as where the
    forward runs in another thread, every call is taken for the last.

    >>> calls = CallsPerGradients()
    >>> [calls.learn("adam", sequence)[1] for sequence in [10, 10, 20, 20, 30, 30, 40, 40]]
    [True, True, True, True, False, True, False, True]
    """

    def __init__(self) -> None:
        self._sequence = -1
        self._calls: dict[object, int] = {}
        """How often each optimizer was called for the current gradients."""
        self._before: dict[object, int] = {}
        """How often each was called for the gradients before."""
        self._expected: dict[object, int] = {}
        """Calls of each for the same gradients, as learned: the same number twice in a row. Others: 1."""

    def learn(self, optimizer: object, sequence: int) -> tuple[bool, bool]:
        """Note a call, and where autograd's counter stands.

        Returns
        -------
        Whether this shows that earlier boundaries were wrong, and whether this call is the last for its gradients.
        """
        before = dict(self._expected)
        if sequence != self._sequence:
            for other, calls in self._calls.items():
                if self._before.get(other) == calls:
                    self._expected[other] = calls
            self._before, self._calls, self._sequence = self._calls, {}, sequence
        calls = self._calls[optimizer] = self._calls.get(optimizer, 0) + 1
        expected = self._expected.get(optimizer, 1)
        if calls > MAX_CALL_RATIO * expected > MAX_CALL_RATIO:  # the counter has stopped
            self._expected[optimizer] = expected = 1
        changed = self._expected.get(optimizer, 1) != before.get(optimizer, 1)
        return changed, expected == 1 or calls == expected


def on_step_end(ended: Callable[[], None], start_over: Callable[[], None]) -> Callable[[], None]:
    """Call back at the end of each training step of the process. Returns the function that unsubscribes.

    ``start_over`` is called before the end of the first step, and again where earlier ones turn out to be parts of one.
    """
    follow_compiled_calls()
    boundaries, calls = Boundaries(), CallsPerGradients()

    def returned(optimizer: Any) -> None:
        mistaken, last = calls.learn(id(optimizer), torch.autograd._get_sequence_nr())
        if mistaken:
            start_over()
        if not last:
            return
        if boundaries.learn(id(optimizer)):
            start_over()
        if boundaries.last == id(optimizer):
            ended()

    return listen(returned=returned)


def _ignore(optimizer: Any) -> None:
    """Do nothing."""


class Listener(NamedTuple):
    """Callbacks that get the optimizer: before and after its step, and once the step has returned."""

    before: Callback = _ignore
    after: Callback = _ignore
    returned: Callback = _ignore


_listeners: list[Listener] = []
_hooked = False
_closures = 0


def listen(after: Callback = _ignore, before: Callback = _ignore, returned: Callback = _ignore) -> Callable[[], None]:
    """Call back around each optimizer's step. Returns the function that unsubscribes, which may be called repeatedly.

    Parameters
    ----------
    after, before
        Called right after and before the step, inside its profiler annotation; not where the step is compiled.
    returned
        Called once the step has returned, outside of annotations and compiled code: profilers and dispatch modes may
        be started and stopped there.

    >>> heard = []
    >>> silence = listen(lambda optimizer: heard.append(type(optimizer).__name__))
    >>> torch.optim.SGD([torch.zeros(1)], lr=0.1).step(); silence(); heard
    ['SGD']
    """
    install_hooks()
    listener = Listener(before, after, returned)
    _listeners.append(listener)

    def silence() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return silence


def install_hooks() -> None:
    """Register with PyTorch's optimizers, once and for good.

    Compiled code that holds an optimizer's step is compiled again after that: a recorder does it before it begins.
    """
    global _hooked
    if _hooked:
        return
    _hooked = True
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)
    on_signal["optimizer"] = lambda: _returned(COMPILED)
    # PyTorch wraps the step of each class when its first instance is made.
    original = Optimizer.profile_hook_step
    Optimizer.profile_hook_step = staticmethod(lambda function: deferring(original(function)))
    for kind in _all_kinds(Optimizer):
        if getattr(vars(kind).get("step"), "hooked", False):
            kind.step = deferring(kind.step)


def _all_kinds(kind: Any) -> list[Any]:
    return [kind, *(found for subclass in kind.__subclasses__() for found in _all_kinds(subclass))]


def _before(optimizer: Any, args: Any, kwargs: Any) -> Any:
    """Call the listeners; the arguments are returned where they hold a closure, which does no update."""
    if torch.compiler.is_compiling() or not _listeners:
        return None
    for listener in tuple(_listeners):
        listener.before(optimizer)
    if len(args) > 1 and callable(args[1]):
        return (args[0], _as_closure(args[1]), *args[2:]), kwargs
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": _as_closure(kwargs["closure"])}
    return None


def _as_closure(function: Callable[[], Any]) -> Callable[[], Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        global _closures
        _closures += 1
        try:
            return function(*args, **kwargs)
        finally:
            _closures -= 1

    return call


def running_closures() -> int:
    """How many closures of optimizers run, one inside the other: they hold forward and backward, and no update.

    >>> seen = []
    >>> silence = listen()
    >>> torch.optim.SGD([torch.zeros(1)], lr=0.1).step(lambda: seen.append(running_closures())); silence(); seen
    [1]
    """
    return _closures


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        SIGNALS.optimizer = True
        return
    for listener in tuple(_listeners):
        listener.after(optimizer)
    if _listeners:
        run_outside(lambda: _returned(optimizer))


def _returned(optimizer: Any) -> None:
    for listener in tuple(_listeners):
        listener.returned(optimizer)
