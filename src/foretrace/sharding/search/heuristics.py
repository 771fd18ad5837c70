"""Start plans of the search: greedy heuristics from the literature, and plans in which all heavy tables are split.

A greedy heuristic places tables in falling order of some size, each on the rank with the least of it so far.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretrace.errors import ForetraceError
from foretrace.graph.tables import Floats, Longs
from foretrace.sharding.costing import Costing
from foretrace.sharding.options import SHARDING_TYPES
from foretrace.sharding.search.state import LOAD, MEMORY, RECEIVED, SENT, PlanState

CEILINGS = 6
"""Ceilings that are tried, from the load of the lightest heavy table to that of the heaviest."""
HEAVY_SHARE = 0.25
"""Share of the mean rank's time from which on a table is heavy: fewer than four of them fill a rank, and leave gaps."""
MIN_HEAVY_TABLES = 2
"""A single heavy table is split by the local search."""

Weigh = Callable[[Costing, PlanState], Floats]


class NoFitError(ForetraceError):
    """A table does not fit on any rank after the other tables are placed."""

    def __init__(self, table: int) -> None:
        super().__init__(f"table {table} fits on no rank", "")
        self.table = table


def _by(size: Callable[[int, int, float], float]) -> Weigh:
    """A heuristic by rows, dim and the ids of a sample."""
    return lambda costing, state: np.array([size(t.rows, t.dim, t.ids) for t in costing.tables])


def _norm(costing: Costing, state: PlanState) -> Floats:
    """Norm of the vector of size and lookups, each over its mean."""
    size = np.array([t.rows * t.dim for t in costing.tables], np.float64)
    lookups = np.array([t.ids * t.dim for t in costing.tables], np.float64)
    return np.asarray(np.hypot(size / size.mean(), lookups / lookups.mean()))


def _cost(costing: Costing, state: PlanState) -> Floats:
    """Predicted lookup and communication time."""
    added = state.costs.added[: len(costing.tables)]
    return state.rank_us(*added[:, (LOAD, SENT, RECEIVED)].T)


HEURISTICS: dict[str, Weigh] = {
    "size-greedy": _by(lambda rows, dim, ids: rows * dim),
    "dim-greedy": _by(lambda rows, dim, ids: dim),
    "lookup-greedy": _by(lambda rows, dim, ids: dim * ids),
    "size-lookup-greedy": _by(lambda rows, dim, ids: dim * ids * np.log10(rows + 1.0)),
    "norm-greedy": _norm,
    "cost-greedy": _cost,
}


def greedy(name: str, costing: Costing, empty: PlanState) -> PlanState:
    """Place all tables by a heuristic; whole where they fit."""
    weight = HEURISTICS[name](costing, empty)
    return place(empty, np.argsort(-weight, kind="stable"), weight)


def round_robin(empty: PlanState) -> PlanState:
    """One table to each rank in turn."""
    state = empty.copy()
    for table in range(len(state.places)):
        _first_fit(state, table, np.roll(np.arange(state.ranks.world), -table % state.ranks.world).astype(float))
    return state


def at_random(empty: PlanState, seed: int) -> PlanState:
    """Each table to a random rank."""
    state, generator = empty.copy(), np.random.default_rng(seed)
    for table in range(len(state.places)):
        _first_fit(state, table, generator.random(state.ranks.world))
    return state


def place(empty: PlanState, order: Longs, weight: Floats) -> PlanState:
    """Tables in this order, each where the sum of weights is least."""
    state, so_far = empty.copy(), np.zeros(empty.ranks.world)
    for table in order.tolist():
        _first_fit(state, table, so_far)
        ranks = list(state.places[table])
        so_far[ranks] += weight[table] / len(ranks)
    return state


def _first_fit(state: PlanState, table: int, so_far: Floats) -> None:
    """Whole on the rank with the least that has memory for it; split as little as needed where none has."""
    for option in state.costs.of_table[table]:
        fits = state.totals[:, MEMORY] + state.costs.added[option, MEMORY] <= state.hbm_budget
        chosen = state.costs.options[option].option
        if SHARDING_TYPES[chosen.sharding_type].on_any_rank:
            order = np.argsort(np.where(fits, so_far, np.inf), kind="stable")[: chosen.shards]
            if len(order) == chosen.shards and fits[order].all():
                return state.put(table, option, tuple(sorted(order.tolist())))
            continue
        groups = [group for group in state.rank_groups(option) if fits[list(group)].all()]
        if groups:
            return state.put(table, option, min(groups, key=lambda group: float(so_far[list(group)].sum())))
    raise NoFitError(table)


def split_heavy(empty: PlanState) -> list[PlanState]:
    """Plans in which all heavy tables are split, one for each of several ceilings on a shard; none if tables are light.

    The local search changes one table at a time. Where several tables hold up a rank each, splitting one leaves the
    step as long as the next one takes, so that the search ends at once. With a ceiling on the load of a shard, each
    table above it takes the cheapest option below it.
    """
    costs, world = empty.costs, empty.ranks.world
    counts = np.array([option.option.shards for option in costs.options])
    us = empty.rank_us(*costs.added[:, (LOAD, SENT, RECEIVED)].T)
    first = np.array([of_table[0] for of_table in costs.of_table])
    heavy = HEAVY_SHARE * float((us * counts)[first].sum()) / world
    if world < 2 or (us[first] > heavy).sum() < MIN_HEAVY_TABLES:
        return []
    burden = us * counts / world + costs.shared
    made = []
    for ceiling in np.geomspace(heavy, us[first].max(), CEILINGS):
        choice = np.array([_cheapest(of_table, us, burden, ceiling) for of_table in costs.of_table])
        state = empty.copy()
        # The longest shards first, on the least busy ranks.
        for table in np.argsort(-us[choice], kind="stable").tolist():
            state.put(table, int(choice[table]), state.best_ranks(int(choice[table])))
        made.append(state)
    return made


def _cheapest(of_table: list[int], us: Floats, burden: Floats, ceiling: float) -> int:
    """A table's first option if that is light enough; else the one of those below the ceiling that adds least."""
    if us[of_table[0]] <= ceiling:
        return of_table[0]
    light = [option for option in of_table if us[option] <= ceiling]
    return min(light, key=lambda option: float(burden[option])) if light else min(of_table, key=us.__getitem__)
