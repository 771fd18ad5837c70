"""Local search: shards move or swap ranks, and tables change their options, while the step gets shorter.

All moves away from a busiest rank are compared by the totals they would leave; the best is made.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace._jit import compiled
from foretrace.graph.tables import Floats, Longs
from foretrace.sharding.options import SHARDING_TYPES
from foretrace.sharding.search.state import LOAD, MEMORY, RECEIVED, SENT, PlanState

MIN_GAIN = 1e-7
"""Share of the step that a move must save."""
MAX_MOVES = 100_000
"""After this many, a search has failed to converge."""
RELIEF_WEIGHT = 1e-3
"""Weight of relieving one of several ranks that are equally busy."""
DECIDING = 3
"""Columns of a rank's totals whose maxima decide the step: LOAD, SENT and RECEIVED; MEMORY comes after them."""
CHANGES_FOLLOWED = 4
"""Changes of options, the best at first sight, after each of which shards are moved until nothing helps."""
MIN_CHANGE_GAIN = 1e-6
"""Share of the step that a change must save."""
MOVES_PER_CHANGE = 60
TABLES_CONSIDERED = 24
"""Tables of the busiest ranks, those with the largest loads first, whose other options are considered."""


class MovableShards(NamedTuple):
    """Shards that may lie on any rank, a row each."""

    table: Longs
    place: Longs
    """Which of the table's shards."""
    rank: Longs
    added: Floats
    """What each adds to its rank."""
    group: Longs
    split: Longs
    """A number for each table of several shards, no two of which may share a rank; -1 for whole tables."""
    holds: NDArray[np.bool_]
    """By that number: the ranks that hold its shards."""

    @classmethod
    def of(cls, state: PlanState) -> MovableShards:
        """The movable shards of a plan in the making."""
        types = [SHARDING_TYPES[state.costs.options[choice].option.sharding_type] for choice in state.choice]
        tables = [table for table, of_type in enumerate(types) if of_type.on_any_rank]
        split_of = {table: number for number, table in enumerate(t for t in tables if len(state.places[t]) > 1)}
        found = [(t, n, rank, split_of.get(t, -1)) for t in tables for n, rank in enumerate(state.places[t])]
        table, place, rank, split = (column.copy() for column in np.array(found, np.int64).reshape(-1, 4).T)
        holds = np.zeros((max(1, len(split_of)), state.ranks.world), np.bool_)
        holds[split[split >= 0], rank[split >= 0]] = True
        option = state.choice[table]
        added = state.costs.added[option].copy()
        added[:, LOAD] = state.load[option]
        return cls(table, place, rank, added, state.costs.group[option], split, holds)


def improve_placement(state: PlanState, max_moves: int = MAX_MOVES) -> int:
    """Move and swap shards until nothing helps; returns the number of moves."""
    shards = MovableShards.of(state)
    moves = 0
    if len(shards.table) and state.ranks.world > 1:
        while moves < max_moves and _make_best_move(state, shards):
            moves += 1
    for table, place, rank in zip(shards.table.tolist(), shards.place.tolist(), shards.rank.tolist()):
        ranks = state.places[table]
        state.places[table] = (*ranks[:place], rank, *ranks[place + 1 :])
    return moves


def improve_options(state: PlanState, until: float) -> PlanState:
    """The state with other options for some tables, as far as that helps before a `time.monotonic` time."""
    while time.monotonic() < until:
        score = state.score()
        for *_, changed in sorted(_changes(state), key=lambda change: change[0])[:CHANGES_FOLLOWED]:
            improve_placement(changed, MOVES_PER_CHANGE)
            if changed.score() < score * (1 - MIN_CHANGE_GAIN):
                state = changed
                break
        else:
            return state
    return state


def _changes(state: PlanState) -> Iterator[tuple[float, int, int, PlanState]]:
    """Each other option of a table on a busiest rank, on the best ranks for it; with the score."""
    for table in _tables_on_busiest(state):
        for option in state.costs.of_table[table]:
            if option != state.choice[table]:
                changed = state.copy()
                changed.remove(table)
                changed.put(table, option, changed.best_ranks(option))
                yield changed.score(), table, option, changed


def _tables_on_busiest(state: PlanState) -> list[int]:
    """Tables with other options on the ranks with the largest totals."""
    busiest = {int(state.totals[:, column].argmax()) for column in (LOAD, SENT, RECEIVED, MEMORY)}
    there = [
        table
        for table, ranks in enumerate(state.places)
        if len(state.costs.of_table[table]) > 1 and not busiest.isdisjoint(ranks)
    ]
    return sorted(there, key=lambda table: -float(state.load[state.costs.of_table[table][0]]))[:TABLES_CONSIDERED]


def _make_best_move(state: PlanState, shards: MovableShards) -> bool:
    """Relieve one of the ranks with the largest totals; False if no move helps."""
    times, totals = state.costs.times, state.totals
    slopes = np.array([1.0, times.sent.per_byte, times.received.per_byte])
    for source in totals[:, :DECIDING].argmax(axis=0).tolist():
        rest = _largest_of_others(totals, state.hbm_budget, source)
        now = rest[source, MEMORY] + max(totals[source, MEMORY] - state.hbm_budget, 0.0)
        now += slopes @ (np.maximum(totals[source], rest[source]) + RELIEF_WEIGHT * totals[source])[:DECIDING]
        shard, target, other = _best_move(
            totals, state.calls, state.costs.call_us, state.hbm_budget, slopes, shards.rank, shards.added,
            shards.group, shards.split, shards.holds, source, rest, now * (1 - MIN_GAIN),
        )  # fmt: skip
        if shard >= 0:
            _move(state, shards, shard, target)
            if other >= 0:
                _move(state, shards, other, source)
            return True
    return False


def _largest_of_others(totals: Floats, hbm_budget: float, source: int) -> Floats:
    """For each rank, the largest totals of the ranks except it and the source; and all bytes above their budgets."""
    others = totals.copy()
    others[source] = 0.0
    over = np.maximum(others[:, MEMORY] - hbm_budget, 0.0)
    columns = np.arange(DECIDING)
    first = others[:, :DECIDING].argmax(axis=0)
    result = np.tile(others.max(axis=0), (len(totals), 1))
    others[first, columns] = 0.0
    result[first, columns] = others[:, :DECIDING].max(axis=0)
    result[:, MEMORY] = over.sum() - over
    return np.asarray(result)


@compiled
def _best_move(
    totals: Floats,
    calls: Longs,
    call_us: Floats,
    hbm_budget: float,
    slopes: Floats,
    rank: Longs,
    added: Floats,
    group: Longs,
    split: Longs,
    holds: NDArray[np.bool_],
    source: int,
    rest: Floats,
    best: float,
) -> tuple[int, int, int]:
    """The shard that should leave a rank, its target, and the shard that comes back; -1 if nothing gets below `best`.

    Plain loops that allocate no arrays and call no functions, so that Numba compiles it within a second.
    """
    world, shards = len(totals), len(rank)
    found = (-1, -1, -1)
    for shard in range(shards):
        if rank[shard] != source:
            continue
        g = group[shard]
        leaves = call_us[g] if calls[source, g] == 1 else 0.0
        for choice in range(world + shards):
            other = choice - world  # below zero: nothing comes back
            target = choice if other < 0 else rank[other]
            if target == source or (split[shard] >= 0 and holds[split[shard], target]):
                continue
            if other >= 0 and split[other] >= 0 and holds[split[other], source]:
                continue
            h = group[other] if other >= 0 else -1
            lost, gained = 0.0, 0.0  # calls that are no longer made, and new ones
            if g != h:
                lost, gained = -leaves, call_us[g] if calls[target, g] == 0 else 0.0
                if other >= 0:
                    lost += call_us[h] if calls[source, h] == 0 else 0.0
                    gained -= call_us[h] if calls[target, h] == 1 else 0.0
            value = rest[target, MEMORY]
            for column in range(MEMORY + 1):
                moved = added[shard, column] - (added[other, column] if other >= 0 else 0.0)
                here, there = totals[source, column] - moved, totals[target, column] + moved
                if column == MEMORY:
                    value += max(here - hbm_budget, 0.0) + max(there - hbm_budget, 0.0)
                    continue
                if column == LOAD:
                    here += lost
                    there += gained
                more = max(here, there)
                value += slopes[column] * (max(more, rest[target, column]) + RELIEF_WEIGHT * more)
            if value < best:
                best, found = value, (shard, target, other)
    return found


def _move(state: PlanState, shards: MovableShards, shard: int, target: int) -> None:
    """Move one shard."""
    source, group, split = shards.rank[shard], shards.group[shard], shards.split[shard]
    totals, calls, call_us = state.totals, state.calls, state.costs.call_us
    totals[source] -= shards.added[shard]
    totals[target] += shards.added[shard]
    calls[source, group] -= 1
    if calls[source, group] == 0:
        totals[source, LOAD] -= call_us[group]
    if calls[target, group] == 0:
        totals[target, LOAD] += call_us[group]
    calls[target, group] += 1
    if split >= 0:
        shards.holds[split, source] = False
        shards.holds[split, target] = True
    shards.rank[shard] = target
