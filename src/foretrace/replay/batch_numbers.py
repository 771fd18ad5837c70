"""Numbers among the arguments of a call that may hold the batch, and the ways to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from foretrace.graph import Constant
from foretrace.replay.batch_inputs import Scale
from foretrace.replay.plan import Argument

MOST_READINGS = 16
"""Ways to read the numbers of one call, one by one."""


def readings(args: tuple[Argument, ...], scale: Scale) -> Iterator[tuple[Argument, ...]]:
    """The arguments as they are; then with one number grown, from the left; then with all of them.

    >>> list(readings(([8, 16, 3],), Scale(8, 24)))
    [([8, 16, 3],), ([24, 16, 3],), ([8, 48, 3],), ([24, 48, 3],)]
    """
    yield args
    count = sum(1 for _ in _numbers(args, scale))
    for chosen in range(min(count, MOST_READINGS)):
        yield tuple(_grown(args, scale, lambda place, chosen=chosen: place == chosen))  # type: ignore[misc]
    if count > 1:
        yield tuple(_grown(args, scale, lambda _: True))


def _numbers(values: Any, scale: Scale) -> Iterator[int]:
    for value in values:
        if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
            yield from _numbers(value, scale)
        elif scale.holds(value):
            yield value


def _grown(args: Any, scale: Scale, wanted: Callable[[int], bool]) -> list[Argument]:
    place = -1

    def walk(value: Any) -> Any:
        nonlocal place
        if isinstance(value, (list, tuple)) and not isinstance(value, Constant):
            return [walk(item) for item in value]
        if not scale.holds(value):
            return value
        place += 1
        return scale.of(value) if wanted(place) else value

    return [walk(value) for value in args]
