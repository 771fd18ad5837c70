"""What each rank holds under each sharding type."""

import pytest

from foretrace.sharding.options import SHARDING_TYPES, Ranks, ShardingOption, sharding_options
from foretrace.sharding.tables import COLUMN_WISE, DATA_PARALLEL, ROW_WISE, TABLE_ROW_WISE, TABLE_WISE, Table

TWO_NODES = Ranks(world=16, per_node=8, batch=100)
USERS = Table("users", rows=10_000, dim=64, pooling=5, zipf=1.0)


def shard_of(kind, count):
    return SHARDING_TYPES[kind].shard(USERS, TWO_NODES, count)


def test_a_whole_table_looks_up_the_ids_of_all_ranks():
    whole = shard_of(TABLE_WISE, 1)
    assert (whole.rows, whole.dim, whole.bags, whole.ids) == (10_000, 64, 1600, 8000)


def test_columns_look_up_all_ids_of_shorter_rows():
    part = shard_of(COLUMN_WISE, 4)
    assert (part.dim, part.ids, part.rows) == (16, 8000, 10_000)


def test_rows_share_the_ids_and_make_parts_of_all_sums():
    whole, part = shard_of(TABLE_WISE, 1), shard_of(ROW_WISE, 16)
    assert part.bags == whole.bags
    assert part.ids == whole.ids / 16
    assert part.unique == pytest.approx(whole.unique / 16)
    assert part.rows == 625


def test_a_copy_looks_up_its_own_samples():
    copy = shard_of(DATA_PARALLEL, 16)
    assert (copy.ids, copy.bags, copy.rows, copy.replicated) == (500, 100, 10_000, True)


def test_rows_in_a_node_lie_on_the_ranks_of_one_node():
    assert ShardingOption(TABLE_ROW_WISE, 8) in sharding_options(USERS, TWO_NODES)
    assert SHARDING_TYPES[TABLE_ROW_WISE].rank_groups(TWO_NODES) == [tuple(range(8)), tuple(range(8, 16))]


def test_one_rank_leaves_no_choice():
    assert sharding_options(USERS, Ranks(1)) == [ShardingOption(TABLE_WISE, 1)]


def test_short_rows_are_not_cut_into_slivers():
    assert ShardingOption(COLUMN_WISE, 2) not in sharding_options(Table("t", 100, 16), TWO_NODES)


def test_a_table_may_forbid_ways():
    only = Table("t", 10_000, 64, kinds=(ROW_WISE,))
    assert sharding_options(only, TWO_NODES) == [ShardingOption(ROW_WISE, 16)]


def test_a_sequence_makes_a_row_for_each_id():
    words = Table("words", rows=10_000, dim=64, pooling=5, sequence=True)
    whole, part, copy = (
        SHARDING_TYPES[kind].shard(words, TWO_NODES, parts)
        for kind, parts in ((TABLE_WISE, 1), (ROW_WISE, 16), (DATA_PARALLEL, 16))
    )
    assert (whole.bags, part.bags, copy.bags) == (8000, 500, 500)


def test_rows_in_a_node_are_rows_among_all_ranks_of_a_job_of_one_node():
    one_node = Ranks(world=8, per_node=8, batch=200)
    inside, among_all = (
        SHARDING_TYPES[TABLE_ROW_WISE].shard(USERS, TWO_NODES, 8),
        SHARDING_TYPES[ROW_WISE].shard(USERS, one_node, 8),
    )
    assert inside[:-2] == among_all[:-2]
    assert inside.histogram.tolist() == among_all.histogram.tolist()


def test_all_rows_in_one_part_are_the_whole_table():
    assert SHARDING_TYPES[ROW_WISE].shard(USERS, TWO_NODES, 1)[:-2] == shard_of(TABLE_WISE, 1)[:-2]


def test_only_whole_tables_and_columns_lie_anywhere():
    assert [kind for kind, of_type in SHARDING_TYPES.items() if of_type.on_any_rank] == [TABLE_WISE, COLUMN_WISE]
