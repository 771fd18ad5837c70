"""Loops as machine code, for processes that have enough of them to run.

Loading the compiler takes longer than to predict a step without it. So whoever can also do without asks `patience`
first: a process that asks for little never waits for the compiler, and one that asks for much soon gains by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

COMPILER_MS = 400.0
"""What loading the compiler takes, with what it has compiled before."""


def compiled(function: Function) -> Function:
    """The function as machine code, made when it is first called, and kept on disk for the next process.

    >>> @compiled
    ... def add(a, b):
    ...     return a + b
    >>> add(2, 3)
    5
    """

    @cache
    def made() -> Any:
        import numba

        try:
            return numba.njit(cache=True, nogil=True)(function)
        except RuntimeError:  # numba found no folder that it may write to
            return numba.njit(nogil=True)(function)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return made()(*arguments)

    return cast(Function, call)


class Patience:
    """How much longer a process goes on without the compiler."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def allows(self, ms: float) -> bool:
        """Whether something shall be done without it that takes so long; if so, that is spent.

        >>> little = Patience(100.0)
        >>> little.allows(90.0), little.allows(20.0), little.allows(10.0)
        (True, False, True)
        """
        if ms > self.ms:
            return False
        self.ms -= ms
        return True


patience = Patience(COMPILER_MS)
"""Of this process."""
