"""Groups that a trace does not name."""

from foretrace.formats.ranks import grouped_alike
from foretrace.graph import Collective, Graph, OpTable


def rank(number: int, *calls: tuple[str, str, tuple[int, ...]]) -> Graph:
    collectives = [Collective(kind, group, 1024, -1, 0, ranks) for kind, group, ranks in calls]
    return Graph(OpTable.of([]), rank=number, world=4, collectives=collectives)


def groups(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.group, one.ranks) for one in graph.collectives]


def test_a_rank_without_names_is_in_the_groups_of_one_that_does_the_same_and_shares_them() -> None:
    pairs = [rank(0, ("all_reduce", "pair", (0, 1))), rank(2, ("all_reduce", "pair", (2, 3)))]
    (*_, last), notes = grouped_alike([*pairs, rank(3, ("all_reduce", "", ()))])
    assert groups(last) == [("pair", (2, 3))]
    assert notes == ["rank 3's trace names no groups: they are taken to be those of rank 2"]


def test_a_rank_that_does_something_else_stays_as_it_is() -> None:
    graphs = [rank(0, ("all_reduce", "world", ())), rank(1, ("all_gather", "", ()))]
    assert grouped_alike(graphs) == (graphs, [])


def test_where_nobody_names_a_group_nothing_is_said() -> None:
    graphs = [rank(0, ("all_reduce", "", ())), rank(1, ("all_reduce", "", ()))]
    assert grouped_alike(graphs) == (graphs, [])
