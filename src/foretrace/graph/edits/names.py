"""What to say of a name that nothing has."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from foretrace.graph.errors import ForetraceError

MOST_NAMED = 8


def unknown(what: str, name: str, known: Iterable[str]) -> ForetraceError:
    """The error, with the names that are like it.

    >>> print(unknown("setting", "bacth", ["batch", "optimizer"]))
    there is no setting 'bacth'. Near to it are batch.
    """
    names = sorted(set(known))
    by_short = {full.rpartition("::")[2]: full for full in names}
    near = get_close_matches(name, [*by_short, *names], n=3)
    told = ", ".join(dict.fromkeys(by_short.get(found, found) for found in near))
    listed = f"There are {', '.join(names[:MOST_NAMED])}{', …' * (len(names) > MOST_NAMED)}."
    return ForetraceError(f"there is no {what} {name!r}", f"Near to it are {told}." if near else listed)
