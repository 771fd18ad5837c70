"""The classic heuristics: tables in falling order of some size, each to the rank that has least of it so far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretrace.graph import ForetraceError
from foretrace.sharding.costing import Costing
from foretrace.sharding.options import KINDS
from foretrace.sharding.search.local_search import best_spot
from foretrace.sharding.search.state import ASKED, LOAD, MEMORY, SENT, State
from foretrace.sharding.shards import Floats, Longs

Weigh = Callable[[Costing, State], Floats]


def _by(size: Callable[[int, int, float], float]) -> Weigh:
    """A heuristic that knows rows, dim and the ids of a sample of a table."""
    return lambda costing, state: np.array([size(t.rows, t.dim, t.ids) for t in costing.tables])


def _norm(costing: Costing, state: State) -> Floats:
    """Length of the vector of size and lookups, each over its mean."""
    size = np.array([t.rows * t.dim for t in costing.tables], np.float64)
    lookups = np.array([t.ids * t.dim for t in costing.tables], np.float64)
    return np.asarray(np.hypot(size / size.mean(), lookups / lookups.mean()))


def _cost(costing: Costing, state: State) -> Floats:
    """What the models say that it adds, sending included."""
    added = state.options.adds[: len(costing.tables)]
    lines = state.options.lines
    return np.asarray(added[:, LOAD] + lines.sent.per_byte * added[:, SENT] + lines.asked.per_byte * added[:, ASKED])


HEURISTICS: dict[str, Weigh] = {
    "size-greedy": _by(lambda rows, dim, ids: rows * dim),
    "dim-greedy": _by(lambda rows, dim, ids: dim),
    "lookup-greedy": _by(lambda rows, dim, ids: dim * ids),
    "size-lookup-greedy": _by(lambda rows, dim, ids: dim * ids * np.log10(rows + 1.0)),
    "norm-greedy": _norm,
    "cost-greedy": _cost,
}


def greedy(name: str, costing: Costing, empty: State) -> State:
    """Place all tables by a heuristic; whole ones where they fit."""
    weight = HEURISTICS[name](costing, empty)
    return place(empty, np.argsort(-weight, kind="stable"), weight)


def in_turn(empty: State) -> State:
    """One table to each rank, round and round."""
    state = empty.copy()
    for table in range(len(state.places)):
        _first_fit(state, table, np.roll(np.arange(state.ranks.world), -table % state.ranks.world).astype(float))
    return state


def at_random(empty: State, seed: int) -> State:
    """Each table to a rank drawn at random."""
    state, draw = empty.copy(), np.random.default_rng(seed)
    for table in range(len(state.places)):
        _first_fit(state, table, draw.random(state.ranks.world))
    return state


def place(empty: State, order: Longs, weight: Floats) -> State:
    """Tables in this order, each where the weights so far are least."""
    state, so_far = empty.copy(), np.zeros(empty.ranks.world)
    for table in order.tolist():
        _first_fit(state, table, so_far)
        ranks = list(state.places[table])
        so_far[ranks] += weight[table] / len(ranks)
    return state


def _first_fit(state: State, table: int, so_far: Floats) -> None:
    """Whole on the rank that has least and has room; split as little as needed where none has."""
    for option in state.options.of_table[table]:
        free = state.has[:, MEMORY] + state.options.adds[option, MEMORY] <= state.room
        way = state.options.options[option].way
        if KINDS[way.kind].anywhere:
            order = np.argsort(np.where(free, so_far, np.inf), kind="stable")[: way.parts]
            if len(order) == way.parts and free[order].all():
                return state.put(table, option, tuple(sorted(order.tolist())))
            continue
        spots = [spot for spot in state.spots(option) if free[list(spot)].all()]
        if spots:
            return state.put(table, option, min(spots, key=lambda spot: float(so_far[list(spot)].sum())))
    raise NoRoomError(table)


class NoRoomError(ForetraceError):
    """A table for which no rank has room any more."""

    def __init__(self, table: int) -> None:
        super().__init__(f"table {table} has no room", "")
        self.table = table


# --- was sharding.ceilings: Starts for tables that are heavy for one rank: all of them are split at once.

GUESSES = 6
"""From what a heavy table takes at least to what the heaviest does."""
HEAVY = 0.25
"""Part of the mean rank's time that a heavy table takes: fewer of them than four fill a rank, and leave gaps."""
SEVERAL = 2
"""Of them there must be; one alone is split by other moves."""


def below_ceilings(empty: State) -> list[State]:
    """Such starts, one for each guess; none where tables are light.

    Parameters
    ----------
    empty
        A plan with no table placed yet.
    """
    options, world = empty.options, empty.ranks.world
    parts = np.array([option.way.parts for option in options.options])
    takes = empty.value_of(*options.adds[:, (LOAD, SENT, ASKED)].T)
    plain = np.array([of_table[0] for of_table in options.of_table])
    heavy = HEAVY * float((takes * parts)[plain].sum()) / world
    if world < 2 or (takes[plain] > heavy).sum() < SEVERAL:
        return []
    burden = takes * parts / world + options.shared
    return [
        _placed(empty, [_cheapest(of_table, takes, burden, ceiling) for of_table in options.of_table], takes)
        for ceiling in np.geomspace(heavy, takes[plain].max(), GUESSES)
    ]


def _cheapest(of_table: list[int], takes: Floats, burden: Floats, ceiling: float) -> int:
    """A table's first option where that is light enough; else the one that adds least to all, of those that are."""
    if takes[of_table[0]] <= ceiling:
        return of_table[0]
    light = [option for option in of_table if takes[option] <= ceiling]
    return min(light, key=lambda option: float(burden[option])) if light else min(of_table, key=takes.__getitem__)


def _placed(empty: State, choice: list[int], takes: Floats) -> State:
    """Each table by its option, the longest parts first, where there is least."""
    state = empty.copy()
    for table in sorted(range(len(choice)), key=lambda table: -float(takes[choice[table]])):
        state.put(table, choice[table], best_spot(state, choice[table]))
    return state
