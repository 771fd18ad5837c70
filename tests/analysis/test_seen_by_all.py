"""Collectives that all ranks' traces show."""

from foretrace.analysis.collective_matching import match_collectives, seen_by_all
from foretrace.graph import Collective, Graph, Job, Op, OpTable

KINDS = ("all_reduce", "all_gather", "all_reduce", "reduce_scatter", "all_reduce")


def rank(number: int, lost: frozenset[int] = frozenset()) -> Graph:
    """Collectives that end every 100 us, a little later on one rank than on the other, without those that are lost."""
    ops = [Op(f"gloo:{kind}", start_us=100.0 * at, end_us=100.0 * at + 90 + number) for at, kind in enumerate(KINDS)]
    seen = [Collective(kind, "all", 64, -1, op=at, ranks=(0, 1)) for at, kind in enumerate(KINDS) if at not in lost]
    return Graph(OpTable.of(ops), rank=number, world=2, collectives=seen)


def rows(graph: Graph) -> list[int]:
    return [collective.op for collective in graph.collectives]


def test_a_record_that_one_trace_lost_in_the_middle_is_no_hang() -> None:
    graphs, (note,) = seen_by_all([rank(0), rank(1, lost=frozenset({1}))])
    assert rows(graphs[0]) == rows(graphs[1]) == [0, 2, 3, 4]
    assert "5 on rank 0, 4 on rank 1" in note and "lost some" in note
    met, _ = match_collectives(Job(graphs))
    assert [meeting.kind for meeting in met] == [KINDS[at] for at in (0, 2, 3, 4)]


def test_traces_may_each_lack_others() -> None:
    graphs, _ = seen_by_all([rank(0, lost=frozenset({0})), rank(1, lost=frozenset({2, 4}))])
    assert rows(graphs[0]) == rows(graphs[1]) == [1, 3]


def test_ranks_that_saw_as_many_are_left_as_they_are() -> None:
    whole = [rank(0), rank(1)]
    graphs, notes = seen_by_all(whole)
    assert graphs == whole and not notes
