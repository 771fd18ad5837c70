"""Collectives that the traces of all their ranks show: ranks are not traced from and to the same moment."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from foretrace.forecast.collectives import ONE_SIDED, times_of
from foretrace.graph import Collective, Graph

Found = list[tuple[int, Collective]]


def shown_by_all(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs without the collectives that other members' traces do not hold, and a word on these.

    What is left out stays a kernel like any other, which takes as long as it was seen to.
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
            notes.append(f"group {name or 'without a name'} has {counts} collectives: those that all saw are simulated")
            for at, numbers in _not_shared(graphs, queues).items():
                lost[at] |= numbers
    return [_without(graph, lost[position]) for position, graph in enumerate(graphs)], notes


def _not_shared(graphs: list[Graph], queues: dict[int, Found]) -> dict[int, set[int]]:
    """What was over before the last member's trace began, and what comes after the first member's has ended."""
    began = max(times_of(graphs[at], queue[0][1])[0] for at, queue in queues.items())
    kept = {at: [one for one in queue if times_of(graphs[at], one[1])[1] > began] for at, queue in queues.items()}
    common = min(len(queue) for queue in kept.values())
    stays = {at: {number for number, _ in queue[:common]} for at, queue in kept.items()}
    return {at: {number for number, _ in queue} - stays[at] for at, queue in queues.items()}


def _without(graph: Graph, lost: set[int]) -> Graph:
    if not lost:
        return graph
    return replace(graph, collectives=[one for number, one in enumerate(graph.collectives) if number not in lost])
