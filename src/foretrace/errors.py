"""ForetraceError, the error a user sees, and the checks of user input that raise it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from typing import Any

MAX_SIZE_DIGITS = 9
"""No size of a step has more, and products of two such sizes still fit in 64 bits."""
MAX_LISTED = 8
"""Known names that an error lists."""


class ForetraceError(Exception):
    """An error that the user can fix: what is wrong, and what to do about it. Shown without a traceback.

    >>> print(ForetraceError("a.json is empty", "Record it again."))
    a.json is empty. Record it again.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        self.what, self.advice = what.rstrip("."), advice
        super().__init__(f"{self.what}. {advice}".strip())


def check_count(value: object, what: str, maximum: int) -> None:
    """Raise unless the value is a whole number from 1 to the maximum.

    >>> check_count("x", "world", 8)
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: world can't be 'x'. Give a whole number from 1 to 8.
    """
    if not _is_integer(value) or not 1 <= value <= maximum:  # type: ignore[operator]
        raise ForetraceError(f"{what} can't be {value!r}", f"Give a whole number from 1 to {maximum:,}.")


def check_by_rank(values: Any, what: str, whole: bool = False) -> None:
    """Raise unless the value maps ranks to numbers.

    >>> check_by_rank([1.2], "slow_host")
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: slow_host can't be [1.2]. Map ranks to numbers, as in {3: 2}.
    """
    valid = isinstance(values, Mapping) and all(
        _is_integer(rank) and (_is_integer(value) if whole else _is_number(value)) for rank, value in values.items()
    )
    if not valid:
        raise ForetraceError(f"{what} can't be {values!r}", "Map ranks to numbers, as in {3: 2}.")


def check_path(value: object, what: str) -> None:
    """Raise unless the value is a name or a path.

    >>> check_path(5, "fabric")
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: fabric can't be 5. Give its name or its path.
    """
    if not isinstance(value, (str, PathLike)):
        raise ForetraceError(f"{what} can't be {value!r}", "Give its name or its path.")


def check_price(price: float) -> None:
    """Refuse what is no price of an hour.

    >>> check_price(2.5)
    """
    if not 0 <= price < float("inf"):
        raise ForetraceError(f"{price:g} is no price of a GPU hour", "Give dollars, like 2.5.")


def parse_size(what: str, text: str) -> tuple[int, int | None]:
    """Parse ``64``, or ``64/16`` where 16 is the recorded size: the new size, and the recorded one or None.

    >>> parse_size("batch", "64"), parse_size("batch", "64/16")
    ((64, None), (64, 16))
    """
    new, slash, old = text.partition("/")
    sizes = [
        int(part) if part.isdecimal() and part.isascii() and len(part) <= MAX_SIZE_DIGITS else 0
        for part in (new, old or "1")
    ]
    if not all(sizes) or (slash and not old):
        largest = 10**MAX_SIZE_DIGITS - 1
        raise ForetraceError(
            f"{what} can't be {text!r}", f"Write a whole number from 1 to {largest:,}, like {what}=64."
        )
    return sizes[0], sizes[1] if old else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> ForetraceError:
    """The error for a name that does not exist, with similar ones.

    >>> print(unknown_name("setting", "bacth", ["batch", "optimizer"]))
    there is no setting 'bacth'. Did you mean batch?
    """
    return ForetraceError(f"there is no {what} {name!r}", suggestion(name, known, "There are"))


def suggestion(name: str, known: Iterable[str], listing: str) -> str:
    """A sentence with known names similar to a wrong one; with the first of all known names if none is similar.

    >>> suggestion("rellu", ["aten::mm", "aten::relu"], "It has"), suggestion("x", ["aten::mm"], "It has")
    ('Did you mean aten::relu?', 'It has aten::mm.')
    """
    names = sorted(filter(None, set(known)))
    if not names:
        return "It names none: traces lack modules."  # the modules of a trace's calls are empty
    by_short = {full.rpartition("::")[2]: full for full in names}
    close = get_close_matches(name, [*by_short, *names], n=3)
    if close:
        return f"Did you mean {' or '.join(dict.fromkeys(by_short.get(found, found) for found in close))}?"
    return f"{listing} {', '.join(names[:MAX_LISTED])}{', …' * (len(names) > MAX_LISTED)}."


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
