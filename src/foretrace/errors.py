"""The one kind of error a user sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from typing import Any


class ForetraceError(Exception):
    """What was wrong with which file, and what to do about it: shown as it is, without a traceback.

    >>> print(ForetraceError("a.json is empty", "Record it again."))
    a.json is empty. Record it again.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        self.what, self.advice = what.rstrip("."), advice
        super().__init__(f"{self.what}. {advice}".strip())


# --- was graph.given: Checks of what a user gives from Python: what makes no sense is refused in words.


def check_count(value: object, what: str, most: int) -> None:
    """Refuse what is no whole number from 1 to so many.

    >>> check_count("x", "world", 8)
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: world can't be 'x'. Give a whole number from 1 to 8.
    """
    if not _is_whole(value) or not 1 <= value <= most:  # type: ignore[operator]
        raise ForetraceError(f"{what} can't be {value!r}", f"Give a whole number from 1 to {most:,}.")


def check_by_rank(values: Any, what: str, whole: bool = False) -> None:
    """Refuse what does not give some ranks a number each.

    >>> check_by_rank([1.2], "slow_host")
    Traceback (most recent call last):
    ...
    foretrace.errors.ForetraceError: slow_host can't be [1.2]. Give ranks a number each, as in {3: 2}.
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
    foretrace.errors.ForetraceError: fabric can't be 5. Give its name or its path.
    """
    if not isinstance(value, (str, PathLike)):
        raise ForetraceError(f"{what} can't be {value!r}", "Give its name or its path.")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


# --- was transforms.names: What to say of a name that nothing has.

MOST_NAMED = 8


def unknown(what: str, name: str, known: Iterable[str]) -> ForetraceError:
    """The error, with the names that are like it.

    >>> print(unknown("setting", "bacth", ["batch", "optimizer"]))
    there is no setting 'bacth'. Near to it is batch.
    """
    return ForetraceError(f"there is no {what} {name!r}", near_to(name, known, "There are"))


def near_to(name: str, known: Iterable[str], listing: str) -> str:
    """Names that are like it; where there are none, those that are known. Calls of a trace have modules without one.

    >>> near_to("rellu", ["aten::mm", "aten::relu"], "It has"), near_to("x", ["aten::mm"], "It has")
    ('Near to it is aten::relu.', 'It has aten::mm.')
    """
    names = sorted(filter(None, set(known)))
    if not names:
        return "It names none: traces lack modules."
    by_short = {full.rpartition("::")[2]: full for full in names}
    near = get_close_matches(name, [*by_short, *names], n=3)
    told = list(dict.fromkeys(by_short.get(found, found) for found in near))
    listed = f"{listing} {', '.join(names[:MOST_NAMED])}{', …' * (len(names) > MOST_NAMED)}."
    return f"Near to it {'is' if len(told) == 1 else 'are'} {', '.join(told)}." if near else listed


# --- was transforms.texts: Edits as a user writes them: ``batch=64``, or ``batch=64/16`` where 16 is what was recorded.

MOST_DIGITS = 9
"""Of a size: no step has a larger one, and sizes that are multiplied still fit in 64 bits."""


def size_of(what: str, text: str) -> tuple[int, int | None]:
    """The new size, and the recorded one where it is told.

    >>> size_of("batch", "64"), size_of("batch", "64/16")
    ((64, None), (64, 16))
    """
    new, slash, old = text.partition("/")
    sizes = [
        int(part) if part.isdecimal() and part.isascii() and len(part) <= MOST_DIGITS else 0
        for part in (new, old or "1")
    ]
    if not all(sizes) or (slash and not old):
        raise ForetraceError(
            f"{what} can't be {text!r}", f"Write a whole number from 1 to {10**MOST_DIGITS - 1:,}, like {what}=64."
        )
    return sizes[0], sizes[1] if old else None
