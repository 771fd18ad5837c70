"""When storages die in a step whose calls are others now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from foretrace.graph.op import Op
from foretrace.transforms.step import Row


def refree(
    rows: Sequence[Row], before: Sequence[Op], soon: Collection[int] = (), now: Mapping[int, int] | None = None
) -> None:
    """Free what the calls before freed, at the same place, but never while somebody still reads it.

    Parameters
    ----------
    rows
        The calls now.
    before
        The calls that the rows' origins count.
    soon
        Storages that are freed as soon as nobody reads them any more.
    now
        Storages that are part of another one now, which is freed with the last of them.
    """
    moved = now or {}
    last = {t.storage: place for place, row in enumerate(rows) for t in (*row.op.tensors, *row.op.produced)}
    place_of = _places(rows, len(before))
    ends = {storage: last[storage] + 1 for storage in soon if storage in last}
    for origin, op in enumerate(before):
        for freed in op.frees:
            storage = moved.get(freed, freed)
            if storage in last and storage not in soon:
                ends[storage] = max(place_of[origin], last[storage] + 1, ends.get(storage, 0))
    for row in rows:
        row.op.frees = ()
    for storage, place in ends.items():
        if place < len(rows):
            rows[place].op.frees += (storage,)


def _places(rows: Sequence[Row], count: int) -> list[int]:
    """For each row before, the place of the first call now that comes from it or from a later one."""
    places = [len(rows)] * count
    for place in range(len(rows) - 1, -1, -1):
        if rows[place].origin >= 0:
            places[rows[place].origin] = place
    for origin in range(count - 2, -1, -1):
        places[origin] = min(places[origin], places[origin + 1])
    return places
