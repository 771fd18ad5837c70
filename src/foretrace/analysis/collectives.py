"""Collectives as measured or simulated on all ranks: which rank arrives last, how long others wait, how long the
transfer takes.

A collective's kernel runs from its rank's arrival to the common end. Up to the arrival of the last rank it waits;
from there on it transfers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.report import PairWait
from foretrace.graph import Collective, Graph
from foretrace.graph.tables import Floats, Longs
from foretrace.simulation.task_graph import total

ONE_SIDED = ("send", "recv")
"""Kinds whose partner a trace does not name."""
EVEN = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Kinds in which all members move the same number of bytes."""
MAX_PAIRS = 100
"""Pairs of ranks that are listed with their waits: a thousand ranks have a million."""


@dataclass
class CollectiveTimes:
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
        """Time each member waited for the last one. A root that need not wait is done before that."""
        return np.asarray(np.minimum(self.last_start[:, None], self.end) - self.start)

    @property
    def transfer(self) -> Floats:
        """From the last arrival to the last end."""
        return self.last_end - self.last_start


def collective_times(graphs: list[Graph]) -> tuple[list[CollectiveTimes], list[str]]:
    """The measured collectives of all ranks, matched by group and by order in it; and notes on what did not match."""
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
        group, unmatched = _group_times(name, by_member, graphs)
        found.append(group)
        notes += unmatched
    return found, list(dict.fromkeys(notes))


def _group_times(
    name: str, by_member: dict[int, list[Collective]], graphs: list[Graph]
) -> tuple[CollectiveTimes, list[str]]:
    members = list(by_member)
    queues, notes = _in_step(name, by_member, graphs)
    count, disagreement = _agreeing(name, queues, [graphs[m].rank for m in members])
    times = np.array([[times_of(graphs[m], c) for c in q[:count]] for m, q in zip(members, queues)], np.float64)
    start, end = times.reshape(len(members), count, 2).transpose(2, 1, 0)
    first = queues[0][:count]
    return CollectiveTimes(
        group=name,
        members=members,
        kinds=[c.kind for c in first],
        nbytes=np.array([max(c.nbytes for c in same) for same in list(zip(*queues))[:count]], np.int64),
        kernel=np.array([[c.kernel for c in q[:count]] for q in queues], np.int64).reshape(-1, count).T,
        start=start,
        end=end,
    ), notes + disagreement


def peer_of(graph: Graph, collective: Collective) -> int:
    """The rank at the other end of a send or a recv; -1 where unknown.

    >>> from foretrace.graph import OpTable
    >>> peer_of(Graph(OpTable.of([]), rank=4), Collective("send", "pair", 1024, kernel=-1, op=0, ranks=(3, 4)))
    3
    """
    others = [rank for rank in collective.ranks if rank != graph.rank]
    return collective.peer if collective.peer >= 0 or len(others) != 1 else others[0]


def members(graph: Graph, collective: Collective) -> Sequence[int]:
    """The ranks of a collective; all of the job where its group is unknown, and for a send its two ends.

    Where the other end is unknown it is taken to be a neighbour.
    """
    if collective.kind in ONE_SIDED:
        peer = peer_of(graph, collective)
        return graph.rank, peer if peer >= 0 else graph.rank ^ 1
    return collective.ranks or graph.groups.get(collective.group, ()) or range(graph.world)


def times_of(graph: Graph, collective: Collective) -> tuple[float, float]:
    """When a rank's part in a collective began and ended; NaN where it was not measured."""
    if collective.kernel >= 0:
        return float(graph.kernels.start[collective.kernel]), float(graph.kernels.end[collective.kernel])
    if collective.op >= 0:
        return float(graph.ops.start[collective.op]), float(graph.ops.end[collective.op])
    return np.nan, np.nan


def _in_step(
    name: str, by_member: dict[int, list[Collective]], graphs: list[Graph]
) -> tuple[list[list[Collective]], list[str]]:
    """The members' queues, without what some of their traces do not hold."""
    queues = list(by_member.values())
    if len({len(queue) for queue in queues}) == 1:
        return queues, []
    counts = ", ".join(f"{len(q)} on rank {graphs[m].rank}" for m, q in zip(by_member, queues))
    note = (
        f"group {name or 'without a name'} has {counts} collectives: those in all traces are matched by when they ended"
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


Ended = tuple[float, str]
"""When a rank ended a collective, in microseconds, and its kind."""


def ended_together(queues: Sequence[Sequence[Ended]]) -> list[Longs]:
    """For each rank the places, in its queue, of the collectives that all of them show, matched by when they ended.

    A trace begins later than others, ends earlier, or has lost a record in between; a job that went on after that did
    not hang, whatever its traces show. The ranks of a collective end it together, so that those are one which are of a
    kind and whose ends are closest to each other, seen from either side.

    Parameters
    ----------
    queues
        Of each rank, in the order of their ends. One without a time is never the same as another.

    >>> whole = [(10.0, "all_reduce"), (20.0, "all_gather"), (30.0, "all_reduce")]
    >>> [places.tolist() for places in ended_together([whole, [(10.5, "all_reduce"), (30.5, "all_reduce")]])]
    [[0, 2], [0, 1]]
    """
    every_end = [np.array([end for end, _ in queue], np.float64) for queue in queues]
    timed = [np.flatnonzero(np.isfinite(ends)) for ends in every_end]
    ends = [some[places] for some, places in zip(every_end, timed)]
    kinds = [np.array([kind for _, kind in queue], object)[places] for queue, places in zip(queues, timed)]
    fewest = int(np.argmin([len(some) for some in ends]))
    shared, partners = np.ones(len(ends[fewest]), bool), []
    for end, kind in zip(ends, kinds):
        there, back = _closest(ends[fewest], end), _closest(end, ends[fewest])
        shared &= (back[there] == np.arange(len(there))) & (kind[there] == kinds[fewest])
        partners.append(there)
    return [places[there[shared]] for places, there in zip(timed, partners)]


def _closest(some: Floats, others: Floats) -> Longs:
    """For each of some times the place of the closest among others, which rise.

    >>> _closest(np.array([1.0, 8.0]), np.array([0.0, 2.5, 9.0])).tolist()
    [0, 2]
    """
    if len(others) < 2:
        return np.zeros(len(some), np.int64)
    after = np.clip(np.searchsorted(others, some), 1, len(others) - 1)
    return np.where(some - others[after - 1] <= others[after] - some, after - 1, after)


def waiting(position: int, collectives: list[CollectiveTimes]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """From when to when the rank at a position waits for others, and whether its device does; waits may overlap."""
    starts, ends, devices = [np.zeros(0)], [np.zeros(0)], [np.zeros(0, bool)]
    for group in collectives:
        if position in group.members:
            column = group.members.index(position)
            starts.append(group.start[:, column])
            ends.append((group.start + group.wait)[:, column])
            devices.append(group.kernel[:, column] >= 0)
    return np.concatenate(starts), np.concatenate(ends), np.concatenate(devices)


def wait_ms(graphs: list[Graph], collectives: list[CollectiveTimes]) -> dict[int, float]:
    """For each rank, how long it waits for others: in several collectives at a time, it waits once."""
    waits = {}
    for position, graph in enumerate(graphs):
        start, end, _ = waiting(position, collectives)
        waits[graph.rank] = total(start, end) / 1e3
    return waits


def pair_waits(graphs: list[Graph], collectives: list[CollectiveTimes]) -> list[PairWait]:
    """Pairs of ranks of which one waits for the other, the longest first."""
    us: dict[tuple[int, int], float] = defaultdict(float)
    seen: dict[tuple[int, int], list[tuple[Floats, Floats]]] = defaultdict(list)
    for group in collectives:
        ranks = [graphs[member].rank for member in group.members]
        for column, late in enumerate(ranks):
            rows = group.last_member == column
            start, wait = group.start[rows], group.wait[rows]
            for place in np.flatnonzero(wait.sum(axis=0) > 0).tolist():
                us[ranks[place], late] += float(wait[:, place].sum())
                seen[ranks[place], late].append((start[:, place], wait[:, place]))
    longest = sorted(us, key=lambda pair: (-us[pair], pair))[:MAX_PAIRS]
    rows_of = [_pair(*pair, seen[pair]) for pair in longest]
    return sorted(rows_of, key=lambda row: (-row.ms, row.rank, row.waits_for))


def _pair(rank: int, late: int, waits: Sequence[tuple[Floats, Floats]]) -> PairWait:
    """What a rank waits for another one; in several collectives at a time, it waits once."""
    start, wait = (np.concatenate(column) for column in zip(*waits))
    ms = total(start, start + wait) / 1e3
    return PairWait(rank, late, ms, int(np.count_nonzero(wait)))
