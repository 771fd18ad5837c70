"""Hearing when any optimizer of the process begins and ends its step.

PyTorch's own list of hooks must not change while it is being walked, and a recording begins and ends inside a hook.
So one pair of hooks is registered for good, and listeners come and go behind it; without listeners it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Heard = Callable[[Any], None]


class Listener(NamedTuple):
    """What to call, with the optimizer, before and after its step."""

    before: Heard
    after: Heard


_listeners: list[Listener] = []
_hooked = False


def listen(after: Heard, before: Heard = lambda optimizer: None) -> Callable[[], None]:
    """Call back around each optimizer's step. Returns what ends it, which may be called more than once.

    >>> import torch
    >>> heard = []
    >>> silence = listen(lambda optimizer: heard.append(type(optimizer).__name__))
    >>> torch.optim.SGD([torch.zeros(1)], lr=0.1).step(); silence(); heard
    ['SGD']
    """
    global _hooked
    if not _hooked:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda optimizer, *_: _tell(optimizer, 0))
        register_optimizer_step_post_hook(lambda optimizer, *_: _tell(optimizer, 1))
        _hooked = True
    listener = Listener(before, after)
    _listeners.append(listener)

    def silence() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return silence


def _tell(optimizer: Any, which: int) -> None:
    for listener in tuple(_listeners):
        listener[which](optimizer)
