"""The last moves of a search, judged by the models."""

import time

import pytest

from foretrace.sharding.plan import Placement, check_placement
from foretrace.sharding.search.iterated_local_search import polish
from foretrace.sharding.tables import Table
from tests.sharding.simple import costing, some_tables

ROOM = 1e11


def uneven(count):
    return tuple(Placement("table_wise", (0,)) for _ in range(count))


def test_an_uneven_plan_becomes_an_even_one():
    cost = costing(some_tables(16), world=4)
    before = cost.estimate(uneven(16))
    plan, after = polish(cost, uneven(16), ROOM, time.monotonic() + 10)
    assert after.step < 0.6 * before.step
    assert after.lookups.mean() > 0.8 * after.lookups.max()
    for table, placement in zip(cost.tables, plan):
        check_placement(table, placement, cost.ranks)


def test_parts_of_a_table_stay_apart():
    tables = [Table("wide", 10_000, 128, pooling=20), *some_tables(5)]
    start = (Placement("column_wise", (0, 1)), *uneven(5))
    plan, _ = polish(costing(tables, world=2), start, ROOM, time.monotonic() + 10)
    assert sorted(plan[0].ranks) == [0, 1]


def test_no_rank_is_filled_beyond_its_room():
    tables = [Table(f"t{n}", 1_000_000, 64, pooling=1 + n) for n in range(6)]
    start = tuple(Placement("table_wise", (n % 2,)) for n in range(6))
    room = 3.2 * tables[0].nbytes
    _, after = polish(costing(tables, world=2), start, room, time.monotonic() + 10)
    assert after.memory.max() <= room


def test_where_there_is_no_time_the_plan_stays():
    cost = costing(some_tables(6), world=2)
    plan, after = polish(cost, uneven(6), ROOM, time.monotonic() - 1)
    assert plan == uneven(6)
    assert after.step == pytest.approx(cost.estimate(plan).step)
