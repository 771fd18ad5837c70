"""Local search: parts move to other ranks, or swap, while that makes the step shorter.

All moves away from a busiest rank are looked at, with what they would leave the busiest ranks with; the best is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace._jit import compiled
from foretrace.sharding.options import KINDS
from foretrace.sharding.search.state import ASKED, LOAD, MEMORY, SENT, State
from foretrace.sharding.shards import Floats, Longs

GAIN = 1e-7
"""Share of the step that a move must save."""
MOVES = 100_000
"""After so many a search has lost its way."""
RELIEF = 1e-3
"""How much it counts to relieve one of several ranks that are as busy as each other."""
DECIDING = 3
"""Columns of what a rank has whose largest values decide the step: LOAD, SENT and ASKED; after them comes MEMORY."""
BYTES = 3


class Parts(NamedTuple):
    """Parts that may lie anywhere, a row each."""

    table: Longs
    place: Longs
    """Which of the table's parts."""
    rank: Longs
    adds: Floats
    """What each adds to its rank, as in `foretrace.sharding.search.state`."""
    group: Longs
    split: Longs
    """A number for each table of several parts, no two of which shall share a rank; -1 for whole ones."""
    holds: NDArray[np.bool_]
    """By that number: the ranks that hold parts of it."""

    @classmethod
    def of(cls, state: State) -> Parts:
        """Those of a state."""
        tables = [table for table in range(len(state.places)) if state.movable(table)]
        cut = {table: number for number, table in enumerate(t for t in tables if len(state.places[t]) > 1)}
        found = [(t, n, rank, cut.get(t, -1)) for t in tables for n, rank in enumerate(state.places[t])]
        table, place, rank, split = (column.copy() for column in np.array(found, np.int64).reshape(-1, 4).T)
        holds = np.zeros((max(1, len(cut)), state.ranks.world), np.bool_)
        holds[split[split >= 0], rank[split >= 0]] = True
        option = state.choice[table]
        adds = state.options.adds[option].copy()
        adds[:, LOAD] = state.load[option]
        return cls(table, place, rank, adds, state.options.group[option], split, holds)


def improve(state: State, most: int = MOVES) -> int:
    """Move and swap until nothing helps, or so many times; says how often something moved."""
    parts = Parts.of(state)
    moved = 0
    if len(parts.table) and state.ranks.world > 1:
        while moved < most and _one_move(state, parts):
            moved += 1
    for table, place, rank in zip(parts.table.tolist(), parts.place.tolist(), parts.rank.tolist()):
        ranks = state.places[table]
        state.places[table] = (*ranks[:place], rank, *ranks[place + 1 :])
    return moved


def _one_move(state: State, parts: Parts) -> bool:
    """Relieve a rank that has most to look up, to send or to get, where one can be."""
    lines, has = state.options.lines, state.has
    slopes = np.array([1.0, lines.sent.per_byte, lines.asked.per_byte])
    for source in has[:, :DECIDING].argmax(axis=0).tolist():
        rest = _rest(has, state.room, source)
        now = rest[source, BYTES] + max(has[source, BYTES] - state.room, 0.0)
        now += slopes @ (np.maximum(has[source], rest[source]) + RELIEF * has[source])[:DECIDING]
        part, target, other = _best(has, state.calls, state.options.call, state.room, slopes, parts.rank, parts.adds,
                                    parts.group, parts.split, parts.holds, source, rest, now * (1 - GAIN))  # fmt: skip
        if part >= 0:
            _carry(state, parts, part, target)
            if other >= 0:
                _carry(state, parts, other, source)
            return True
    return False


def _rest(has: Floats, room: float, source: int) -> Floats:
    """For each rank, the most that any rank has, it and the source left out; and all bytes that do not fit on those."""
    others = has.copy()
    others[source] = 0.0
    over = np.maximum(others[:, BYTES] - room, 0.0)
    columns = np.arange(DECIDING)
    first = others[:, :DECIDING].argmax(axis=0)
    result = np.tile(others.max(axis=0), (len(has), 1))
    others[first, columns] = 0.0
    result[first, columns] = others[:, :DECIDING].max(axis=0)
    result[:, BYTES] = over.sum() - over
    return np.asarray(result)


@compiled
def _best(
    has: Floats,
    calls: Longs,
    call: Floats,
    room: float,
    slopes: Floats,
    rank: Longs,
    adds: Floats,
    group: Longs,
    split: Longs,
    holds: NDArray[np.bool_],
    source: int,
    rest: Floats,
    best: float,
) -> tuple[int, int, int]:
    """The part that should leave a rank, where to, and what comes back for it; -1 where nothing gets below `best`.

    One function that makes no arrays and calls no other: it is compiled in a second.
    """
    world, parts = len(has), len(rank)
    found = (-1, -1, -1)
    for part in range(parts):
        if rank[part] != source:
            continue
        g = group[part]
        leaves = call[g] if calls[source, g] == 1 else 0.0
        for choice in range(world + parts):
            other = choice - world  # below zero: nothing comes back
            target = choice if other < 0 else rank[other]
            if target == source or (split[part] >= 0 and holds[split[part], target]):
                continue
            if other >= 0 and split[other] >= 0 and holds[split[other], source]:
                continue
            h = group[other] if other >= 0 else -1
            lost, gained = 0.0, 0.0  # what calls take that are no longer made, and new ones
            if g != h:
                lost, gained = -leaves, call[g] if calls[target, g] == 0 else 0.0
                if other >= 0:
                    lost += call[h] if calls[source, h] == 0 else 0.0
                    gained -= call[h] if calls[target, h] == 1 else 0.0
            value = rest[target, BYTES]
            for column in range(BYTES + 1):
                moved = adds[part, column] - (adds[other, column] if other >= 0 else 0.0)
                here, there = has[source, column] - moved, has[target, column] + moved
                if column == BYTES:
                    value += max(here - room, 0.0) + max(there - room, 0.0)
                    continue
                if column == LOAD:
                    here += lost
                    there += gained
                more = max(here, there)
                value += slopes[column] * (max(more, rest[target, column]) + RELIEF * more)
            if value < best:
                best, found = value, (part, target, other)
    return found


def _carry(state: State, parts: Parts, part: int, target: int) -> None:
    """Move one part."""
    source, group, split = parts.rank[part], parts.group[part], parts.split[part]
    has, calls, call = state.has, state.calls, state.options.call
    has[source] -= parts.adds[part]
    has[target] += parts.adds[part]
    calls[source, group] -= 1
    if calls[source, group] == 0:
        has[source, LOAD] -= call[group]
    if calls[target, group] == 0:
        has[target, LOAD] += call[group]
    calls[target, group] += 1
    if split >= 0:
        parts.holds[split, source] = False
        parts.holds[split, target] = True
    parts.rank[part] = target


# --- was sharding.splits: Local search over ways: a table on a busiest rank is sharded in another way, while that makes the step shorter.

FOLLOWED = 4
"""Changes, the best at first sight, after each of which parts are moved until nothing helps."""
LEAST = 1e-6
"""Share of the step that a change must save."""
AFTER = 60
"""Moves after each of those."""
SEEN = 24
"""Tables of a busiest rank, the heaviest first, whose other ways are looked at."""


def improve_ways(state: State, until: float) -> State:
    """The state with other ways for some of its tables, as far as that helps before the time is over."""
    while time.monotonic() < until:
        value = state.pressed()
        tried = sorted(_changes(state), key=lambda change: change[0])[:FOLLOWED]
        better = (followed for *_, changed in tried if (followed := _followed(changed)).pressed() < value * (1 - LEAST))
        found = next(better, None)
        if found is None:
            return state
        state = found
    return state


def _followed(state: State) -> State:
    improve(state, AFTER)
    return state


def _changes(state: State) -> Iterator[tuple[float, int, int, State]]:
    """Each other way of a table on a busiest rank, in the places that look best; with what the step then takes."""
    for table in _on_busiest(state):
        for option in state.options.of_table[table]:
            if option != state.choice[table]:
                changed = state.copy()
                changed.take(table)
                changed.put(table, option, best_spot(changed, option))
                yield changed.pressed(), table, option, changed


def _on_busiest(state: State) -> list[int]:
    """Tables with other ways on the ranks that have most to look up, to send or to hold."""
    busiest = {int(state.has[:, column].argmax()) for column in (LOAD, SENT, ASKED, MEMORY)}
    there = [
        table
        for table, ranks in enumerate(state.places)
        if len(state.options.of_table[table]) > 1 and not busiest.isdisjoint(ranks)
    ]
    return sorted(there, key=lambda table: -float(state.load[state.options.of_table[table][0]]))[:SEEN]


def best_spot(state: State, option: int) -> tuple[int, ...]:
    """Where an option's parts would leave the ranks with least."""
    adds = state.adds(option)
    then = state.has + adds
    busy = state.value_of(then[:, LOAD], then[:, SENT], then[:, ASKED]) + state.over_of(then)
    way = state.options.options[option].way
    if KINDS[way.kind].anywhere:
        return tuple(sorted(np.argsort(busy, kind="stable")[: way.parts].tolist()))
    return min(state.spots(option), key=lambda spot: float(busy[list(spot)].max()))
