"""Just-in-time compilation of array loops, for processes that run enough of them.

Loading the compiler takes longer than predicting a step without it. A loop that also runs interpreted asks `jit_budget`
first: a process with little work never loads the compiler, and one with much work soon gains by it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])

COMPILER_MS = 400.0
"""Time to load the compiler with the machine code that an earlier process cached."""


def compiled(function: Function) -> Function:
    """The function as machine code, compiled at its first call and cached on disk for the next process.

    >>> @compiled
    ... def add(a, b):
    ...     return a + b
    >>> add(2, 3)
    5
    """

    @cache
    def machine_code() -> Any:
        import numba

        try:
            return numba.njit(cache=True, nogil=True)(function)
        except RuntimeError:  # numba found no folder that it may write to
            return numba.njit(nogil=True)(function)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return machine_code()(*arguments)

    return cast(Function, call)


class JitBudget:
    """Milliseconds of interpreted work that a process may still do before the compiler pays off."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def allows(self, ms: float) -> bool:
        """Whether interpreted work of this length fits into the budget; if so, it is taken from it.

        >>> budget = JitBudget(100.0)
        >>> budget.allows(90.0), budget.allows(20.0), budget.allows(10.0)
        (True, False, True)
        """
        if ms > self.ms:
            return False
        self.ms -= ms
        return True


jit_budget = JitBudget(COMPILER_MS)
"""The budget of this process."""
