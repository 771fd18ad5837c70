"""Checks of what a user gives from Python: what makes no sense is refused in words."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from os import PathLike
from typing import Any

from foretrace.graph.errors import ForetraceError


def check_count(value: object, what: str, most: int) -> None:
    """Refuse what is no whole number from 1 to so many.

    >>> check_count("x", "world", 8)
    Traceback (most recent call last):
    ...
    foretrace.graph.errors.ForetraceError: world can't be 'x'. Give a whole number from 1 to 8.
    """
    if not _is_whole(value) or not 1 <= value <= most:  # type: ignore[operator]
        raise ForetraceError(f"{what} can't be {value!r}", f"Give a whole number from 1 to {most:,}.")


def check_by_rank(values: Any, what: str, whole: bool = False) -> None:
    """Refuse what does not give some ranks a number each.

    >>> check_by_rank([1.2], "slow_host")
    Traceback (most recent call last):
    ...
    foretrace.graph.errors.ForetraceError: slow_host can't be [1.2]. Give ranks a number each, as in {3: 2}.
    """
    right = isinstance(values, Mapping) and all(
        _is_whole(rank) and (_is_whole(value) if whole else _is_number(value)) for rank, value in values.items()
    )
    if not right:
        raise ForetraceError(f"{what} can't be {values!r}", "Give ranks a number each, as in {3: 2}.")


def check_path(value: object, what: str) -> None:
    """Refuse what is no name of anything.

    >>> check_path(5, "fabric")
    Traceback (most recent call last):
    ...
    foretrace.graph.errors.ForetraceError: fabric can't be 5. Give its name or its path.
    """
    if not isinstance(value, (str, PathLike)):
        raise ForetraceError(f"{what} can't be {value!r}", "Give its name or its path.")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
