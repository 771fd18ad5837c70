"""Options that several verbs share, and what they mean."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def rank_numbers(text: str | None) -> list[int] | None:
    """The ranks that a text like 0-2,4 names; None for no text.

    >>> rank_numbers("0-2,4")
    [0, 1, 2, 4]
    """
    if text is None:
        return None
    from foretrace.graph import MAX_RANKS  # here, since it brings numpy: --help does without

    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(f"{text!r} names no ranks; write them like 0-2,4", param_hint="--ranks")
        if not int(first) <= int(last or first) < MAX_RANKS:
            raise typer.BadParameter(f"{part.strip()!r} is no range of ranks; write it like 0-7", param_hint="--ranks")
        ranks.update(range(int(first), int(last or first) + 1))
    return sorted(ranks)
