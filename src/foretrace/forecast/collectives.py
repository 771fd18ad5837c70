"""Collectives across ranks: who came last, how long the others waited, how long the transfer took.

A collective's kernel runs from its rank's arrival to the common end. Up to the arrival of the last rank it waits;
from there on it transfers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.forecast.ended_together import ended_together
from foretrace.graph import Collective, Graph
from foretrace.graph.tables import Floats, Longs

ONE_SIDED = ("send", "recv")
"""Kinds whose partner a trace does not name."""
EVEN = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Kinds in which all members move the same number of bytes."""


@dataclass
class Meetings:
    """The collectives of one group, in order: a row for each, a column for each member that has a graph."""

    group: str
    members: list[int]
    """Positions of the members' graphs in the job."""
    kinds: list[str]
    nbytes: Longs
    kernel: Longs
    """Rows in the members' kernel tables; -1 for a collective that runs on the host."""
    start: Floats
    end: Floats

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def last_start(self) -> Floats:
        """When the last member arrived."""
        return np.asarray(self.start.max(axis=1))

    @property
    def last_end(self) -> Floats:
        """When the last member was done."""
        return np.asarray(self.end.max(axis=1))

    @property
    def last_member(self) -> Longs:
        """Column of the member that arrived last."""
        return np.asarray(self.start.argmax(axis=1))

    @property
    def wait(self) -> Floats:
        """Time each member spent waiting for the last one. A root that need not wait is done before that."""
        return np.asarray(np.minimum(self.last_start[:, None], self.end) - self.start)

    @property
    def transfer(self) -> Floats:
        """From the last arrival to the last end."""
        return self.last_end - self.last_start


def meetings(graphs: list[Graph]) -> tuple[list[Meetings], list[str]]:
    """Match the collectives of all ranks by group and by order in it; and notes on what did not match."""
    groups: dict[tuple[str, tuple[int, ...]], dict[int, list[Collective]]] = defaultdict(dict)
    notes = []
    for position, graph in enumerate(graphs):
        if any(c.kind in ONE_SIDED for c in graph.collectives):
            notes.append("send and recv are not matched across ranks: their time is wait and transfer together")
        matchable = [c for c in graph.collectives if c.kind not in ONE_SIDED and np.isfinite(times_of(graph, c)).all()]
        for collective in sorted(matchable, key=lambda c: times_of(graph, c)):
            groups[collective.group, collective.ranks].setdefault(position, []).append(collective)
    found = []
    for (name, _), by_member in groups.items():
        group, doubts = _meet(name, by_member, graphs)
        found.append(group)
        notes += doubts
    return found, list(dict.fromkeys(notes))


def _meet(name: str, by_member: dict[int, list[Collective]], graphs: list[Graph]) -> tuple[Meetings, list[str]]:
    members = list(by_member)
    queues, notes = _in_step(name, by_member, graphs)
    count, doubts = _agreeing(name, queues, [graphs[m].rank for m in members])
    times = np.array([[times_of(graphs[m], c) for c in q[:count]] for m, q in zip(members, queues)], np.float64)
    start, end = times.reshape(len(members), count, 2).transpose(2, 1, 0)
    first = queues[0][:count]
    return Meetings(
        group=name,
        members=members,
        kinds=[c.kind for c in first],
        nbytes=np.array([max(c.nbytes for c in same) for same in list(zip(*queues))[:count]], np.int64),
        kernel=np.array([[c.kernel for c in q[:count]] for q in queues], np.int64).reshape(-1, count).T,
        start=start,
        end=end,
    ), notes + doubts


def peer_of(graph: Graph, collective: Collective) -> int:
    """The rank at the other end of a send or a recv; -1 where nobody knows.

    >>> from foretrace.graph import OpTable
    >>> peer_of(Graph(OpTable.of([]), rank=4), Collective("send", "pair", 1024, kernel=-1, op=0, ranks=(3, 4)))
    3
    """
    others = [rank for rank in collective.ranks if rank != graph.rank]
    return collective.peer if collective.peer >= 0 or len(others) != 1 else others[0]


def members(graph: Graph, collective: Collective) -> Sequence[int]:
    """The ranks that meet in a collective; all of the job where nobody says, and for a send its two ends.

    Where nobody knows the other end it is taken to be a neighbour.
    """
    if collective.kind in ONE_SIDED:
        peer = peer_of(graph, collective)
        return graph.rank, peer if peer >= 0 else graph.rank ^ 1
    return collective.ranks or graph.groups.get(collective.group, ()) or range(graph.world)


def times_of(graph: Graph, collective: Collective) -> tuple[float, float]:
    """When a rank's part in a collective began and ended; NaN where nobody measured it."""
    if collective.kernel >= 0:
        return float(graph.kernels.start[collective.kernel]), float(graph.kernels.end[collective.kernel])
    if collective.op >= 0:
        return float(graph.ops.start[collective.op]), float(graph.ops.end[collective.op])
    return np.nan, np.nan


def _in_step(
    name: str, by_member: dict[int, list[Collective]], graphs: list[Graph]
) -> tuple[list[list[Collective]], list[str]]:
    """The members' queues, without what some of their traces do not show."""
    queues = list(by_member.values())
    if len({len(queue) for queue in queues}) == 1:
        return queues, []
    counts = ", ".join(f"{len(q)} on rank {graphs[m].rank}" for m, q in zip(by_member, queues))
    note = (
        f"group {name or 'without a name'} has {counts} collectives: those that all saw are matched by when they ended"
    )
    ordered = [sorted(queue, key=lambda c: times_of(graphs[m], c)[1]) for m, queue in zip(by_member, queues)]
    ended = [[(times_of(graphs[m], c)[1], c.kind) for c in queue] for m, queue in zip(by_member, ordered)]
    return [[queue[place] for place in places] for queue, places in zip(ordered, ended_together(ended))], [note]


def _agreeing(name: str, queues: list[list[Collective]], ranks: list[int]) -> tuple[int, list[str]]:
    """How many collectives from the first one on all members agree about."""
    for index, (first, *others) in enumerate(zip(*queues)):
        for rank, other in zip(ranks[1:], others):
            if other.kind != first.kind or (other.nbytes != first.nbytes and first.kind in EVEN):
                note = (
                    f"ranks disagree on collective {index} of group {name or 'without a name'}: {first.kind} of "
                    f"{first.nbytes} bytes on rank {ranks[0]}, {other.kind} of {other.nbytes} bytes on rank {rank}"
                )
                return index, [note]
    return min(len(queue) for queue in queues), []
