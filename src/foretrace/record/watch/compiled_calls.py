"""Deferring the recorder's work until the thread has left compiled calls and optimizer steps.

At a step boundary, profilers, observers and dispatch modes start and stop. Two places are wrong for that:

* inside a call of a compiled function: when it returns, torch.compile restores the dispatcher's state of this thread
  to what it was at the start, and a mode that was entered or left in between no longer agrees with it;
* inside an optimizer's step, which PyTorch annotates (``Optimizer.step#SGD.step``): an execution trace that ends there
  lacks the annotation and with it the parent of all calls in it. A profiler that stops there frees what the annotation
  writes to when it ends: where another one has started in the meantime, memory is corrupted.

So such work waits until the thread has left the outermost of them. Needs no torch until something is recorded.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

from foretrace.record.watch.compiled_programs import follow_programs

COMPILED_CALL = "saved_dynamic_layer_stack_depth"
"""A variable of the function in ``torch._dynamo.eval_frame`` around each compiled call, and of no other one there."""


class Signals:
    """Flags that compiled code raises.

    What torch.compile traces does not run when the compiled code does, except for stores to attributes: these are
    repeated after each run, break no graph and guard nothing.
    """

    optimizer = False
    """An optimizer's step was a part of it."""
    step = False
    """``foretrace.step()`` was called in it."""
    lost = False
    """Work was dropped: it came up in a call that was compiled before the recorder was attached."""


SIGNALS = Signals()
on_signal: dict[str, Callable[[], None]] = {}
"""Called once a compiled call has returned in which the flag of this name was raised."""


class _Thread(threading.local):
    """Nesting depth of one thread, and the work that waits until it is 0."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Callable[[], None]] = []


_thread = _Thread()
_following = False


def run_outside(work: Callable[[], None]) -> None:
    """Run a function now, or once this thread has left every compiled call and every optimizer step.

    Inside a call that was compiled before the recorder was attached it never runs, since its return can't be detected:
    `Signals.lost` is set.

    >>> done = []
    >>> def inner():
    ...     run_outside(lambda: done.append("work"))
    ...     done.append("inner")
    >>> deferring(inner)()
    >>> done
    ['inner', 'work']
    """
    if _thread.depth:
        _thread.waiting.append(work)
    else:
        _do([work])


def deferring(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that `run_outside` waits for its return. While torch.compile traces it, nothing is added."""
    from torch.compiler import is_compiling

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        _thread.depth += 1
        try:
            result = function(*args, **kwargs)
        except BaseException:
            _thread.depth -= 1
            if not _thread.depth:
                _thread.waiting.clear()
            raise
        _thread.depth -= 1
        if not _thread.depth:
            _left()
        return result

    return call


def follow_compiled_calls() -> None:
    """Wrap all functions that torch.compile returns from now on. Modules never contain an optimizer step."""
    global _following
    import torch

    if _following or not hasattr(torch, "compile"):
        return
    _following = True
    follow_programs()
    original = torch.compile

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        given = args[0] if args else kwargs.get("model")
        if given is None or not isinstance(made, FunctionType) or getattr(given, "__name__", "") == "_call_impl":
            return made  # a decorator, or a module's
        return deferring(made)

    torch.compile = compile


def skip_compilation(*functions: Any) -> None:
    """Keep torch.compile from compiling these functions where uncompiled code calls them inside a compiled call.

    Where compiled code itself calls them, they are traced: there they check ``torch.compiler.is_compiling()`` and do
    nothing.
    """
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if hasattr(dynamo, "skip_code"):
        for function in functions:
            dynamo.skip_code(function.__code__)


def _left() -> None:
    """Run what waited for this thread to be outside."""
    for name, work in tuple(on_signal.items()):
        if getattr(SIGNALS, name):
            setattr(SIGNALS, name, False)
            _thread.waiting.append(work)
    waiting, _thread.waiting = _thread.waiting, []
    _do(waiting)


def _do(waiting: list[Callable[[], None]]) -> None:
    if waiting and _in_a_compiled_call():
        SIGNALS.lost = True
        return
    for work in waiting:
        work()


def _in_a_compiled_call() -> bool:
    """Whether a compiled function is on the call stack."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if COMPILED_CALL in frame.f_code.co_varnames:
            return True
        frame = frame.f_back
    return False
