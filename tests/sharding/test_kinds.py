"""What each rank holds under each way of sharding."""

import pytest

from foretrace.sharding.options import COLUMN, DATA, KINDS, ROW, TABLE, TABLE_ROW, Ranks, Way, ways
from foretrace.sharding.tables import Table

TWO_NODES = Ranks(world=16, per_node=8, batch=100)
USERS = Table("users", rows=10_000, dim=64, pooling=5, zipf=1.0)


def piece(kind, parts):
    return KINDS[kind].piece(USERS, TWO_NODES, parts)


def test_a_whole_table_looks_up_the_ids_of_all_ranks():
    whole = piece(TABLE, 1)
    assert (whole.rows, whole.dim, whole.bags, whole.ids) == (10_000, 64, 1600, 8000)


def test_columns_look_up_all_ids_of_shorter_rows():
    part = piece(COLUMN, 4)
    assert (part.dim, part.ids, part.rows) == (16, 8000, 10_000)


def test_rows_share_the_ids_and_make_parts_of_all_sums():
    whole, part = piece(TABLE, 1), piece(ROW, 16)
    assert part.bags == whole.bags
    assert part.ids == whole.ids / 16
    assert part.unique == pytest.approx(whole.unique / 16)
    assert part.rows == 625


def test_a_copy_looks_up_its_own_samples():
    copy = piece(DATA, 16)
    assert (copy.ids, copy.bags, copy.rows, copy.everywhere) == (500, 100, 10_000, True)


def test_rows_in_a_node_lie_on_the_ranks_of_one_node():
    assert Way(TABLE_ROW, 8) in ways(USERS, TWO_NODES)
    assert KINDS[TABLE_ROW].where(TWO_NODES) == [tuple(range(8)), tuple(range(8, 16))]


def test_one_rank_leaves_no_choice():
    assert ways(USERS, Ranks(1)) == [Way(TABLE, 1)]


def test_short_rows_are_not_cut_into_slivers():
    assert Way(COLUMN, 2) not in ways(Table("t", 100, 16), TWO_NODES)


def test_a_table_may_forbid_ways():
    only = Table("t", 10_000, 64, kinds=(ROW,))
    assert ways(only, TWO_NODES) == [Way(ROW, 16)]


def test_a_sequence_makes_a_row_for_each_id():
    words = Table("words", rows=10_000, dim=64, pooling=5, sequence=True)
    whole, part, copy = (
        KINDS[kind].piece(words, TWO_NODES, parts) for kind, parts in ((TABLE, 1), (ROW, 16), (DATA, 16))
    )
    assert (whole.bags, part.bags, copy.bags) == (8000, 500, 500)


def test_rows_in_a_node_are_rows_among_all_ranks_of_a_job_of_one_node():
    one_node = Ranks(world=8, per_node=8, batch=200)
    inside, among_all = KINDS[TABLE_ROW].piece(USERS, TWO_NODES, 8), KINDS[ROW].piece(USERS, one_node, 8)
    assert inside[:-2] == among_all[:-2]
    assert inside.reuse.tolist() == among_all.reuse.tolist()


def test_all_rows_in_one_part_are_the_whole_table():
    assert KINDS[ROW].piece(USERS, TWO_NODES, 1)[:-2] == piece(TABLE, 1)[:-2]


def test_only_whole_tables_and_columns_lie_anywhere():
    assert [kind for kind, way in KINDS.items() if way.anywhere] == [TABLE, COLUMN]
