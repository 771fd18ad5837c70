"""Edits as a user writes them: ``batch=64``, or ``batch=64/16`` where 16 is what was recorded."""

from __future__ import annotations

from foretrace.graph.errors import ForetraceError

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
