"""Start plans in which all heavy tables are split at once."""

import numpy as np

from foretrace.sharding.plan import check_placement
from foretrace.sharding.search.heuristics import split_heavy
from foretrace.sharding.search.iterated_local_search import search
from foretrace.sharding.search.state import LOAD, OptionCosts, PlanState
from foretrace.sharding.tables import Table
from tests.sharding.simple import costing

HBM_BUDGET = 1e11
HEAVY = [Table(f"heavy{n}", 100_000, 128, pooling=200) for n in range(6)]
LIGHT = [Table(f"light{n}", 100_000, 64, pooling=1) for n in range(40)]


def starts(tables, world):
    cost = costing(tables, world=world)
    return split_heavy(PlanState.empty(OptionCosts.of(cost, HBM_BUDGET), cost.ranks, HBM_BUDGET))


def test_light_tables_need_none():
    assert starts(LIGHT, world=4) == []


def test_one_heavy_table_needs_none():
    assert starts([HEAVY[0], *LIGHT], world=8) == []


def test_the_lower_the_ceiling_the_less_a_part_takes():
    made = starts(HEAVY + LIGHT, world=8)
    parts = [max(float(state.added(option)[LOAD]) for option in state.choice) for state in made]
    assert parts == sorted(parts)
    assert parts[0] < 0.5 * parts[-1]
    for state in made:
        for table, placement in zip(HEAVY + LIGHT, state.plan()):
            check_placement(table, placement, state.ranks)


def test_several_tables_that_hold_up_a_rank_each_are_all_split():
    found = search(costing(HEAVY, world=8, batch=4096), HBM_BUDGET, seconds=20)
    assert all(len(placement.ranks) > 1 for placement in found.plan)
    assert found.estimate.lookups.mean() > 0.7 * found.estimate.lookups.max()
    assert np.all(found.estimate.lookups > 0)
