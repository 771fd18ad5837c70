"""Which calls of several ranks are one collective."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.analysis.collective_matching import CollectiveMatch, match_collectives
from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, OpTable


def rank(number: int, world: int, *collectives: Collective, module: str = "") -> Graph:
    for row, one in enumerate(collectives):
        one.op = row
    ops = [Op(f"c10d::{one.kind}", module=module, phase="backward") for one in collectives]
    return Graph(OpTable.of(ops), rank=number, world=world, collectives=list(collectives))


def reduce(nbytes: int = 1024, ranks: tuple[int, ...] = (0, 1), kind: str = "all_reduce", **more: Any) -> Collective:
    return Collective(kind, more.pop("group", "0"), nbytes, -1, -1, ranks, **more)


def met(*ranks: Graph, **more: Any) -> list[CollectiveMatch]:
    return match_collectives(Job(list(ranks), **more))[0]


def test_the_nth_of_a_group_on_one_rank_is_the_nth_on_all() -> None:
    found = met(rank(0, 2, reduce(8), reduce(16)), rank(1, 2, reduce(8), reduce(16)))
    assert [one.nbytes for one in found] == [8, 16]
    assert [[tuple(call) for call in one.calls] for one in found] == [[(0, 0), (1, 0)], [(0, 1), (1, 1)]]


def test_groups_are_told_apart_by_their_members() -> None:
    pairs = [(0, 1), (0, 1), (2, 3), (2, 3)]
    found = met(*(rank(number, 4, reduce(ranks=pair)) for number, pair in enumerate(pairs)))
    assert [one.ranks for one in found] == [(0, 1), (2, 3)]


def test_ranks_that_disagree_on_the_size_are_told_with_both_calls() -> None:
    with pytest.raises(ForetraceError, match="forever") as hang:
        met(rank(0, 2, reduce(8), module="layer.1"), rank(1, 2, reduce(16), module="layer.2"))
    assert "rank 0 calls all_reduce of 8 bytes (c10d::all_reduce, op 0, backward, in layer.1)" in str(hang.value)
    assert "rank 1 calls all_reduce of 16 bytes" in str(hang.value) and "layer.2" in str(hang.value)


def test_ranks_that_disagree_on_the_order_are_told() -> None:
    first, second = reduce(8), reduce(8, kind="broadcast")
    with pytest.raises(ForetraceError, match="rank 1 calls broadcast"):
        met(rank(0, 2, first, second), rank(1, 2, reduce(8, kind="broadcast"), reduce(8)))


def test_a_rank_that_stops_sooner_than_the_others_is_told() -> None:
    with pytest.raises(ForetraceError, match="rank 1 has no more of that group"):
        met(rank(0, 2, reduce(), reduce()), rank(1, 2, reduce()))


def test_uneven_splits_keep_the_size_of_each_rank() -> None:
    uneven = met(*(rank(n, 2, reduce(8 * (n + 1), kind="all_to_all")) for n in range(2)))
    assert uneven[0].nbytes == (8, 16)


def test_a_missing_rank_counts_in_the_price_and_is_not_waited_for() -> None:
    (found,) = met(rank(0, 4, reduce(ranks=(0, 1, 2, 3))), rank(2, 4, reduce(ranks=(0, 1, 2, 3))))
    assert len(found.ranks) == 4 and len(found.calls) == 2


def test_a_group_that_nobody_defines_is_the_whole_job_and_that_is_said() -> None:
    found, notes = match_collectives(Job([rank(n, 2, reduce(ranks=())) for n in range(2)]))
    assert found[0].ranks == (0, 1) or list(found[0].ranks) == [0, 1]
    assert "taken to be all 2 ranks" in notes[0]


def test_a_group_with_a_rank_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(ForetraceError, match="has ranks 0 to 7, and the job has 2"):
        met(rank(0, 2, reduce(ranks=(0, 7))), rank(1, 2))


def test_the_nth_send_meets_the_nth_receive() -> None:
    sends = [reduce(8 * n, (0, 1, 2), "send", peer=2) for n in (1, 2)]
    takes = [reduce(8 * n, (0, 1, 2), "recv", peer=0) for n in (1, 2)]
    found = met(rank(0, 3, *sends), rank(2, 3, *takes))
    assert [(one.kind, one.nbytes, one.ranks, len(one.calls)) for one in found] == [
        ("send", 8, (0, 2), 2), ("send", 16, (0, 2), 2),
    ]  # fmt: skip


def test_a_send_that_nobody_receives_is_told() -> None:
    with pytest.raises(ForetraceError, match="rank 1 has no call that matches it"):
        met(rank(0, 2, reduce(8, kind="send", peer=1)), rank(1, 2))


def test_a_send_of_a_pair_needs_no_word_on_the_other_end() -> None:
    (found,) = met(rank(0, 2, reduce(8, kind="send")), rank(1, 2, reduce(8, kind="recv")))
    assert len(found.calls) == 2


def test_ranks_alike_take_part_through_the_graph_they_share() -> None:
    # Two pipelines of two stages: 0 sends to 1, and 2, which is alike 0, to 3, which is alike 1.
    first = rank(0, 4, reduce(8, (0, 1), "send", peer=1), reduce(64, (0, 2)))
    second = rank(1, 4, reduce(8, (0, 1), "recv", peer=0), reduce(64, (1, 3)))
    found = met(first, second, alike={2: 0, 3: 1})
    assert sorted((one.kind, len(one.calls)) for one in found) == [("all_reduce", 1), ("all_reduce", 1), ("send", 2)]


def test_a_rank_alike_one_that_has_no_graph_is_refused() -> None:
    with pytest.raises(ForetraceError, match="equal to rank 3, which has no graph"):
        met(rank(0, 4, reduce()), alike={1: 3})


@given(st.lists(st.sampled_from([4, 8, 16]), max_size=8), st.integers(1, 4), st.data())
def test_equal_ranks_always_agree_and_one_that_differs_never_does(sizes: list[int], world: int, data: Any) -> None:
    ranks = tuple(range(world))
    graphs = [rank(number, world, *(reduce(size, ranks) for size in sizes)) for number in ranks]
    assert [one.nbytes for one in met(*graphs)] == sizes
    if sizes and world > 1:
        graphs[-1].collectives[data.draw(st.integers(0, len(sizes) - 1))].nbytes += 1
        with pytest.raises(ForetraceError):
            met(*graphs)
