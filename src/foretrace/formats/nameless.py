"""Collectives of which a trace does not name the group: as the other ranks of the job name theirs."""

from __future__ import annotations

from dataclasses import replace

from foretrace.graph import Graph


def grouped_alike(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs with groups for all ranks, where some say which, and a word on the others.

    A profiler trace of an older PyTorch names no groups, its execution trace does. A rank that came without one is
    taken to exchange in the groups of a rank that calls the same kinds in the same order, if it is a member of them.

    >>> from foretrace.graph import Collective, OpTable
    >>> def rank(number, group):
    ...     reduce = Collective("all_reduce", group, 1024, kernel=-1, op=0)
    ...     return Graph(OpTable.of([]), rank=number, world=2, collectives=[reduce])
    >>> (_, other), notes = grouped_alike([rank(0, "tensor"), rank(1, "")])
    >>> other.collectives[0].group, notes
    ('tensor', ["rank 1's trace names no groups: they are taken to be those of rank 0"])
    """
    named = [graph for graph in graphs if graph.collectives and all(one.group for one in graph.collectives)]
    found, notes = list[Graph](), list[str]()
    for graph in graphs:
        nameless = not any(one.group or one.ranks for one in graph.collectives)
        like = next((other for other in named if _may_share(graph, other)), None) if nameless else None
        if like is None:
            found.append(graph)
            continue
        both = zip(graph.collectives, like.collectives)
        collectives = [replace(one, group=other.group, ranks=other.ranks) for one, other in both]
        found.append(replace(graph, collectives=collectives, groups={**like.groups, **graph.groups}))
        notes.append(f"rank {graph.rank}'s trace names no groups: they are taken to be those of rank {like.rank}")
    return found, notes


def _may_share(graph: Graph, other: Graph) -> bool:
    """Whether one rank calls what another does, in groups that it is a member of."""
    if not graph.collectives or [c.kind for c in graph.collectives] != [c.kind for c in other.collectives]:
        return False
    groups = (one.ranks or other.groups.get(one.group, ()) for one in other.collectives)
    return all(not ranks or graph.rank in ranks for ranks in groups)
