"""Words for changes of a whole job: how ranks share a step, how many they are, how they exchange gradients."""

from __future__ import annotations

from collections.abc import Callable

from foretrace.errors import unknown_name
from foretrace.graph import MAX_RANKS, ForetraceError
from foretrace.transforms.fusion.ddp_buckets import parse_bucket_size
from foretrace.transforms.parallel.schedules import SCHEDULES

SWITCHED = {"on": True, "off": False}


def count(text: str) -> int:
    """A number of ranks, or of parts.

    >>> count("16")
    16
    """
    found = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0
    if not 1 <= found <= MAX_RANKS:
        raise ForetraceError(f"{text!r} is no number of ranks or parts", f"Write 1 to {MAX_RANKS:,}.")
    return found


def switch(text: str) -> bool:
    """Whether something is on.

    >>> switch("off")
    False
    """
    if text not in SWITCHED:
        raise ForetraceError(f"{text!r} is neither on nor off", "Write on, or off.")
    return SWITCHED[text]


def schedule(text: str) -> str:
    """The order in which stages take turns.

    >>> schedule("gpipe")
    'gpipe'
    """
    if text not in SCHEDULES:
        raise unknown_name("schedule", text, SCHEDULES)
    return text


WAYS: dict[str, Callable[[str], int | bool | str]] = {
    **dict.fromkeys(("data", "tensor", "pipeline", "experts", "microbatches", "chunks"), count),
    **dict.fromkeys(("sharded", "sequence", "mixed", "tables"), switch),
    "schedule": schedule,
}
"""How ranks share the step of one: the options of `foretrace.parallelize`."""
OF_JOBS: dict[str, Callable[[str], int | float | bool | str]] = {
    **WAYS,
    "world": count,
    "buckets": parse_bucket_size,
    "overlap": switch,
}
"""All of them, and what reads the value of each."""
