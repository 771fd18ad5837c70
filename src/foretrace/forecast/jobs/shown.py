"""Collectives that the traces of all their ranks show: ranks are not traced from and to the same moment."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from foretrace.forecast.collectives import ONE_SIDED, times_of
from foretrace.forecast.ended_together import ended_together
from foretrace.graph import Collective, Graph

Found = list[tuple[int, Collective]]


def shown_by_all(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs without the collectives that other members' traces do not hold, and a word on these.

    What is left out stays a kernel like any other, which takes as long as it was seen to.

    >>> from foretrace.graph import Op, OpTable
    >>> def rank(*ends):
    ...     ops = OpTable.of([Op("c10d::allreduce_", start_us=end - 5.0, end_us=end) for end in ends])
    ...     return Graph(ops, collectives=[Collective("all_reduce", "0", 64, -1, row) for row in range(len(ends))])
    >>> graphs, (note,) = shown_by_all([rank(10.0, 50.0, 90.0), rank(50.5, 90.2)])
    >>> [len(graph.collectives) for graph in graphs]
    [2, 2]
    """
    groups: dict[tuple[str, tuple[int, ...]], dict[int, Found]] = defaultdict(dict)
    lost: dict[int, set[int]] = defaultdict(set)
    for position, graph in enumerate(graphs):
        for number, one in enumerate(graph.collectives):
            if not one.kind:
                lost[position].add(number)
            elif one.kind not in ONE_SIDED:
                groups[one.group, one.ranks].setdefault(position, []).append((number, one))
    unknown = sum(map(len, lost.values()))
    notes = [f"{unknown} collectives of which nothing tells the kind stay as they were measured"] if unknown else []
    for (name, _), queues in groups.items():
        if len({len(queue) for queue in queues.values()}) > 1:
            counts = ", ".join(f"{len(queue)} on rank {graphs[at].rank}" for at, queue in queues.items())
            called = name.removeprefix("group ") or "without a name"
            notes.append(
                f"group {called} has {counts} collectives: a trace began later, ended earlier or lost some; those that "
                "all saw, by when they ended, are simulated"
            )
            for at, numbers in _not_shared(graphs, queues).items():
                lost[at] |= numbers
    return [_without(graph, lost[position]) for position, graph in enumerate(graphs)], notes


def _not_shared(graphs: list[Graph], queues: dict[int, Found]) -> dict[int, set[int]]:
    """The numbers of those that some member's trace does not hold."""
    ordered = {at: sorted(queue, key=lambda one: times_of(graphs[at], one[1])[1]) for at, queue in queues.items()}
    ended = [[(times_of(graphs[at], one)[1], one.kind) for _, one in queue] for at, queue in ordered.items()]
    stays = dict(zip(ordered, ended_together(ended)))
    return {
        at: {number for number, _ in queue} - {queue[place][0] for place in stays[at]} for at, queue in ordered.items()
    }


def _without(graph: Graph, lost: set[int]) -> Graph:
    if not lost:
        return graph
    return replace(graph, collectives=[one for number, one in enumerate(graph.collectives) if number not in lost])
