"""Hearing when any optimizer of the process begins and ends its step.

PyTorch's own list of hooks must not change while it is being walked, and code that torch.compile has traced is traced
again when it does. So one pair of hooks is registered for good, and listeners come and go behind it; without listeners
it does nothing. Steps that are part of compiled code call no hook: the compiled code raises a flag instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from foretrace.record.outside import SIGNALS, enclosing, on_signal, when_outside

Heard = Callable[[Any], None]

COMPILED = "an optimizer in compiled code"
"""What listeners are given in place of an optimizer whose step was compiled: nothing says which one it was."""


def _ignore(optimizer: Any) -> None:
    """Do nothing."""


class Listener(NamedTuple):
    """What to call, with the optimizer: before and after its step, and once the step has been left altogether."""

    before: Heard = _ignore
    after: Heard = _ignore
    left: Heard = _ignore


_listeners: list[Listener] = []
_hooked = False


def listen(after: Heard = _ignore, before: Heard = _ignore, left: Heard = _ignore) -> Callable[[], None]:
    """Call back around each optimizer's step. Returns what ends it, which may be called more than once.

    Parameters
    ----------
    after, before
        Called right after and before the step, inside of what annotates it; not where the step is compiled.
    left
        Called once the step has returned, outside of annotations and compiled code: profilers and dispatch modes may
        be started and stopped there.

    >>> heard = []
    >>> silence = listen(lambda optimizer: heard.append(type(optimizer).__name__))
    >>> torch.optim.SGD([torch.zeros(1)], lr=0.1).step(); silence(); heard
    ['SGD']
    """
    hook_in()
    listener = Listener(before, after, left)
    _listeners.append(listener)

    def silence() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return silence


def hook_in() -> None:
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
    on_signal["optimizer"] = lambda: _left(COMPILED)
    # PyTorch wraps the step of each class when its first instance is made.
    original = Optimizer.profile_hook_step
    Optimizer.profile_hook_step = staticmethod(lambda function: enclosing(original(function)))
    for kind in _all_kinds(Optimizer):
        if getattr(vars(kind).get("step"), "hooked", False):
            kind.step = enclosing(kind.step)


def _all_kinds(kind: Any) -> list[Any]:
    return [kind, *(found for subclass in kind.__subclasses__() for found in _all_kinds(subclass))]


def _before(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        for listener in tuple(_listeners):
            listener.before(optimizer)


def _after(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        SIGNALS.optimizer = True
        return
    for listener in tuple(_listeners):
        listener.after(optimizer)
    if _listeners:
        when_outside(lambda: _left(optimizer))


def _left(optimizer: Any) -> None:
    for listener in tuple(_listeners):
        listener.left(optimizer)
