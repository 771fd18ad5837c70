"""What to say of a name that nothing has."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from foretrace.graph.errors import ForetraceError

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
