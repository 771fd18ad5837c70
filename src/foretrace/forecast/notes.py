"""What several ranks or several forecasts have to say, said once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NUMBER = re.compile(r"(?<![\w-])\d[\d,.]*(?![\w-])")
"""A number by itself; those of a name, as a100-8x, are none."""
EXAMPLES = re.compile(r"\([^()]*\)")


def said_alike(note: str) -> frozenset[str]:
    """What notes share that differ in numbers, in the order of what they list, or in examples alone.

    >>> said_alike("a (6%) and b (2.0%) on 2 nodes") == said_alike("b (4%) and a (3.0%) on 4 nodes")
    True
    >>> said_alike("a100-8x on 4 nodes") == said_alike("a100-4x on 4 nodes")
    False
    """
    return frozenset(NUMBER.sub("", EXAMPLES.sub("", note)).replace(",", " ").split())


def of_ranks(notes: Mapping[int, Iterable[str]]) -> list[str]:
    """The notes of some ranks, of those that say much the same the first one's.

    >>> of_ranks({0: ["guessed", "5 ms are guesses"], 1: ["guessed", "6 ms are guesses"]})
    ['guessed', 'on rank 0, others alike: 5 ms are guesses']
    """
    found: dict[frozenset[str], dict[str, int]] = {}
    for rank, theirs in notes.items():
        for note in theirs:
            found.setdefault(said_alike(note), {}).setdefault(note, rank)
    return [
        note if len(same) == 1 else f"on rank {rank}, others alike: {note}"
        for same in found.values()
        for note, rank in [next(iter(same.items()))]
    ]
