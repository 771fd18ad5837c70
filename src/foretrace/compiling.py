"""Compiling: once per machine where the result can be kept, else once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function as machine code, kept on disk for the next process.

    >>> @compiled
    ... def add(a, b):
    ...     return a + b
    >>> add(2, 3)
    5
    """
    try:
        made = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba found no folder that it may write to
        made = numba.njit(nogil=True)(function)
    return cast(Function, made)
