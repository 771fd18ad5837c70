"""The search: close to the optimum, reproducible, in time, and within the memory."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from foretrace.graph import ForetraceError
from foretrace.sharding.options import SHARDING_TYPES
from foretrace.sharding.plan import Placement, check_placement
from foretrace.sharding.search.exact import optimality_gap, solve, state_of
from foretrace.sharding.search.heuristics import HEURISTICS, greedy
from foretrace.sharding.search.iterated_local_search import polish, search
from foretrace.sharding.search.local_search import improve_placement
from foretrace.sharding.search.state import OptionCosts, PlanState
from foretrace.sharding.tables import COLUMN_WISE, Table
from tests.narrowing import present
from tests.sharding.simple import costing, some_tables

HBM_BUDGET = 1e11


@pytest.mark.parametrize("seed", range(4))
def test_whole_tables_are_placed_as_well_as_trying_all_places_does(seed):
    tables = [Table(**{**t.__dict__, "kinds": ("table_wise",)}) for t in some_tables(8, seed)]
    cost = costing(tables, world=3)
    options = OptionCosts.of(cost, HBM_BUDGET)

    def value(ranks):
        state = PlanState.empty(options, cost.ranks, HBM_BUDGET)
        for table, rank in enumerate(ranks):
            state.put(table, table, (rank,))
        return state.value()

    best = min(value((0, *rest)) for rest in itertools.product(range(3), repeat=7))
    found = search(cost, HBM_BUDGET, seconds=5)
    assert value([placement.ranks[0] for placement in found.plan]) <= best * 1.005


@pytest.mark.parametrize("seed", range(2))
def test_mixed_ways_come_close_to_the_proven_optimum(seed):
    pytest.importorskip("scipy")
    cost = costing(some_tables(6, seed), world=2, batch=2048)
    assert present(optimality_gap(cost, HBM_BUDGET, search(cost, HBM_BUDGET, seconds=5).plan)) <= 0.01


def test_the_integer_program_and_the_search_count_alike():
    pytest.importorskip("scipy")
    cost = costing(some_tables(4), world=2)
    options = OptionCosts.of(cost, HBM_BUDGET, every=True)
    best = present(solve(cost, HBM_BUDGET, options))
    assert (
        state_of(best, cost, HBM_BUDGET, options).value()
        <= state_of(search(cost, HBM_BUDGET, 5).plan, cost, HBM_BUDGET, options).value()
    )


def test_sums_follow_moves():
    cost = costing(some_tables(20), world=4)
    options = OptionCosts.of(cost, HBM_BUDGET)
    state = greedy("dim-greedy", cost, PlanState.empty(options, cost.ranks, HBM_BUDGET))
    before = state.value()
    assert improve_placement(state) > 0
    again = state_of(state.plan(), cost, HBM_BUDGET, options)
    assert state.value() < before
    assert again.value() == pytest.approx(state.value())
    assert np.allclose(again.totals, state.totals)
    assert np.array_equal(again.calls, state.calls)


def test_the_search_beats_or_meets_every_heuristic():
    cost = costing(some_tables(40), world=8)
    found = search(cost, HBM_BUDGET, seconds=5)
    assert set(HEURISTICS) < set(found.heuristics)
    assert found.estimate.step <= min(other.step for other in found.heuristics.values())
    for table, placement in zip(cost.tables, found.plan):
        check_placement(table, placement, cost.ranks)


def test_the_same_seed_gives_the_same_plan():
    tables = some_tables(30)
    one, other = (search(costing(tables, world=4), HBM_BUDGET, seconds=30, seed=3).plan for _ in range(2))
    assert one == other


def test_it_ends_when_the_time_is_over():
    begun = time.process_time()
    found = search(costing(some_tables(120), world=8), HBM_BUDGET, seconds=0.0)
    assert len(found.plan) == 120
    assert time.process_time() - begun < 10


def test_it_says_how_far_it_is():
    told = []
    search(
        costing(some_tables(5), world=2),
        HBM_BUDGET,
        5.0,
        on_progress=lambda stage: told.append((stage.text, stage.of)),
    )
    assert told[0] == ("pricing tables", 5.0)


def test_no_rank_holds_more_than_it_has_room_for():
    tables = [Table(f"t{n}", 1_000_000, 64) for n in range(12)]
    room = 3.5 * tables[0].nbytes
    found = search(costing(tables, world=4), room, seconds=5)
    assert found.estimate.memory.max() <= room


def test_a_table_that_fits_on_no_rank_is_split():
    tables = [Table("large", 10_000_000, 128), *some_tables(6)]
    found = search(costing(tables, world=4), 0.5 * tables[0].nbytes, seconds=5)
    assert found.plan[0].kind in ("row_wise", "column_wise")


def test_what_fits_nowhere_is_named_with_what_would_help():
    large = Table("large", 100_000_000, 128)
    with pytest.raises(
        ForetraceError, match=r"table large fits on no rank.*GB more than.*What would help: \d+ ranks"
    ) as said:
        search(costing([large, *some_tables(3)], world=2), 5e9, seconds=1)
    assert "GB" in str(said.value)


def test_tables_that_are_too_many_are_told_by_their_sum():
    tables = [Table(f"t{n}", 10_000_000, 64) for n in range(8)]
    with pytest.raises(ForetraceError, match=r"the tables need .* more than the .* of 2 ranks.*fp16 tables"):
        search(costing(tables, world=2), 6e9, seconds=1)


def test_forbidden_row_wise_is_part_of_the_advice():
    large = Table("large", 100_000_000, 128, kinds=("table_wise",))
    with pytest.raises(ForetraceError, match="to allow row_wise"):
        search(costing([large], world=8), 20e9, seconds=1)


@pytest.mark.parametrize(
    ("table", "world"),
    [
        (Table("t", 10, 64, kinds=("row_wise",)), 16),
        (Table("t", 1000, 24, kinds=("column_wise", "row_wise")), 1),
        (Table("t", 1000, 24, kinds=("table_row_wise",)), 12),
    ],
)
def test_a_table_that_can_be_sharded_in_none_of_its_ways_is_refused(table, world):
    with pytest.raises(ForetraceError, match=rf"on {world} ranks table t can't be sharded .*Allow table_wise"):
        search(costing([table], world=world), HBM_BUDGET, seconds=1)


def test_more_ranks_than_a_table_has_rows_are_no_advice():
    short = Table("short", 3, 64, kinds=("row_wise",))
    with pytest.raises(ForetraceError, match="What would help: more --memory"):
        search(costing([short], world=2), 1e3, seconds=1)


def test_nothing_moves_where_there_is_one_rank():
    found = search(costing(some_tables(3), world=1), HBM_BUDGET, seconds=1)
    assert {placement.ranks for placement in found.plan} == {(0,)}


def test_a_new_way_is_searched_once_it_is_in_kinds(monkeypatch):
    halves = replace(SHARDING_TYPES[COLUMN_WISE], shard_counts=lambda table, ranks: iter((2,)))
    monkeypatch.setitem(SHARDING_TYPES, "halves", halves)
    tables = [Table(**{**table.__dict__, "kinds": ("halves",)}) for table in some_tables(6)]
    found = search(costing(tables, world=4), HBM_BUDGET, seconds=5)
    assert {(placement.kind, len(placement.ranks)) for placement in found.plan} == {("halves", 2)}


def uneven(count):
    return tuple(Placement("table_wise", (0,)) for _ in range(count))


def test_an_uneven_plan_becomes_an_even_one():
    cost = costing(some_tables(16), world=4)
    before = cost.estimate(uneven(16))
    plan, after = polish(cost, uneven(16), HBM_BUDGET, time.monotonic() + 10)
    assert after.step < 0.6 * before.step
    assert after.lookups.mean() > 0.8 * after.lookups.max()
    for table, placement in zip(cost.tables, plan):
        check_placement(table, placement, cost.ranks)


def test_parts_of_a_table_stay_apart():
    tables = [Table("wide", 10_000, 128, pooling=20), *some_tables(5)]
    start = (Placement("column_wise", (0, 1)), *uneven(5))
    plan, _ = polish(costing(tables, world=2), start, HBM_BUDGET, time.monotonic() + 10)
    assert sorted(plan[0].ranks) == [0, 1]


def test_no_rank_is_filled_beyond_its_room():
    tables = [Table(f"t{n}", 1_000_000, 64, pooling=1 + n) for n in range(6)]
    start = tuple(Placement("table_wise", (n % 2,)) for n in range(6))
    room = 3.2 * tables[0].nbytes
    _, after = polish(costing(tables, world=2), start, room, time.monotonic() + 10)
    assert after.memory.max() <= room


def test_where_there_is_no_time_the_plan_stays():
    cost = costing(some_tables(6), world=2)
    plan, after = polish(cost, uneven(6), HBM_BUDGET, time.monotonic() - 1)
    assert plan == uneven(6)
    assert after.step == pytest.approx(cost.estimate(plan).step)
