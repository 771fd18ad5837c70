"""Matching collectives across ranks: the n-th of a group on one rank is the n-th of it on all.

Ranks that do not agree on what the n-th one is would deadlock; the error names both calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

from foretrace.analysis.collectives import EVEN, ONE_SIDED, ended_together, members, peer_of, times_of
from foretrace.graph import PHASES, Collective, ForetraceError, Graph, Job

SEND = "send"


class Call(NamedTuple):
    """One rank's part in a collective."""

    graph: int
    """Position of its graph in the job."""
    number: int
    """Which of that graph's collectives."""


@dataclass(frozen=True, slots=True)
class CollectiveMatch:
    """One collective as it appears on every participating rank.

    Matched by process group and order, not by time: hosts drift, and a late rank is what we want to find.
    """

    kind: str
    nbytes: int | tuple[int, ...]
    """Of each call where these differ."""
    ranks: tuple[int, ...]
    """All members, those without a graph included."""
    calls: tuple[Call, ...]
    """Of the members that have a graph."""


Queue = list[tuple[Call, Collective]]


def match_collectives(job: Job) -> tuple[list[CollectiveMatch], list[str]]:
    """The collectives of a job, matched across its ranks, and notes on what had to be assumed.

    Refused where ranks disagree on the order or the size of what they do together: such a job hangs.

    Parameters
    ----------
    job
        Graphs whose collectives are in the order of their calls. A rank that is alike another one takes part through
        that one's graph; a rank without either does not hold the others up.

    >>> from foretrace.graph import Op, OpTable
    >>> def rank(number):
    ...     reduce = Collective("all_reduce", "0", 1024, kernel=-1, op=0, ranks=(0, 1))
    ...     return Graph(OpTable.of([Op("c10d::allreduce_")]), rank=number, world=2, collectives=[reduce])
    >>> (match,), notes = match_collectives(Job([rank(0), rank(1)]))
    >>> match.ranks, len(match.calls), notes
    ((0, 1), 2, [])
    """
    check_alike(job)
    groups, pairs = _Groups(job), _Pairs(job)
    for position, graph in enumerate(job.graphs):
        for number, collective in enumerate(graph.collectives):
            kind = pairs if collective.kind in ONE_SIDED else groups
            kind.add(Call(position, number), collective)
    matches = [*groups.matches(), *pairs.matches()]
    return matches, list(dict.fromkeys([*groups.notes, *pairs.notes]))


class _Groups:
    """Collectives of groups."""

    def __init__(self, job: Job) -> None:
        self.job, self.notes = job, list[str]()
        self.queues: list[dict[int, Queue]] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[int, str], list[tuple[tuple[int, ...], dict[int, Queue]]]] = defaultdict(list)

    def add(self, call: Call, collective: Collective) -> None:
        self._queue(call.graph, collective).setdefault(call.graph, []).append((call, collective))

    def _queue(self, position: int, collective: Collective) -> dict[int, Queue]:
        """The queues of a collective's group, by rank."""
        known = self._known[position, collective.group]
        for ranks, queue in known:
            if ranks is collective.ranks:  # the collectives of a group share it: thousands of members are not compared
                return queue
        group = self._group(position, collective.group, collective.ranks)
        number = self._numbers.setdefault(group, len(self._numbers))
        if number == len(self.queues):
            self.queues.append({})
        known.append((collective.ranks, self.queues[number]))
        return self.queues[number]

    def _group(self, position: int, name: str, ranks: tuple[int, ...]) -> tuple[object, ...]:
        """The same for all graphs whose collectives these are."""
        graph = self.job.graphs[position]
        members = ranks or graph.groups.get(name, ())
        if not members and self.job.world > 1:
            called = f"group {name.removeprefix('group ')!r}" if name else "the group of some collectives"
            self.notes.append(f"no trace defines {called}: it is taken to be all {self.job.world} ranks")
        _check_member(graph, name, members, self.job.world)
        if any(rank in self.job.alike for rank in members):
            return ("alike", *sorted(self.job.alike.get(rank, rank) for rank in members))
        return (name, *members)

    def matches(self) -> Iterator[CollectiveMatch]:
        for by_graph in self.queues:
            for same in zip_longest(*by_graph.values()):
                yield self._match(same, list(by_graph))

    def _match(self, same: Sequence[tuple[Call, Collective] | None], positions: list[int]) -> CollectiveMatch:
        there = [one for one in same if one is not None]
        if len(there) < len(same):
            alone = self.job.graphs[positions[same.index(None)]]
            raise _deadlock(_site(self.job, *there[0]), f"rank {alone.rank} has no more of that group")
        (call, first), *others = there
        for other in others:
            if other[1].kind != first.kind or (other[1].nbytes != first.nbytes and first.kind in EVEN):
                raise _deadlock(_site(self.job, call, first), _site(self.job, *other))
        sizes = tuple(collective.nbytes for _, collective in there)
        ranks = tuple(members(self.job.graphs[call.graph], first))
        nbytes = sizes[0] if len(set(sizes)) == 1 else sizes
        return CollectiveMatch(first.kind, nbytes, ranks, tuple(call for call, _ in there))


class _Pairs:
    """Sends and receives: the n-th from one rank to another, and the n-th there from it."""

    def __init__(self, job: Job) -> None:
        self.job, self.notes = job, list[str]()
        self.sent: dict[tuple[int, int], Queue] = defaultdict(list)
        self.received: dict[tuple[int, int], Queue] = defaultdict(list)
        self.alone: Queue = []

    def add(self, call: Call, collective: Collective) -> None:
        graph = self.job.graphs[call.graph]
        peer = peer_of(graph, collective)
        if peer < 0:
            self.notes.append("traces do not name the other end of some sends: these wait for no other rank")
            self.alone.append((call, collective))
            return
        _check_member(graph, collective.group, (peer, graph.rank), self.job.world)
        here, there = graph.rank, self.job.alike.get(peer, peer)
        if collective.kind == SEND:
            self.sent[here, there].append((call, collective))
        else:
            self.received[there, here].append((call, collective))

    def matches(self) -> Iterator[CollectiveMatch]:
        known = {graph.rank for graph in self.job.graphs}
        for call, collective in self.alone:
            yield self._one(call, collective)
        for way in {**self.sent, **self.received}:
            sent, received = self.sent[way], self.received[way]
            both = min(len(sent), len(received))
            yield from map(self._pair, sent, received)
            for call, collective in sent[both:] + received[both:]:
                if known.issuperset(way):
                    other = way[collective.kind == SEND]
                    raise _deadlock(_site(self.job, call, collective), f"rank {other} has no call that matches it")
                yield self._one(call, collective)

    def _one(self, call: Call, collective: Collective) -> CollectiveMatch:
        graph = self.job.graphs[call.graph]
        return CollectiveMatch(SEND, collective.nbytes, tuple(members(graph, collective)), (call,))

    def _pair(self, sent: tuple[Call, Collective], received: tuple[Call, Collective]) -> CollectiveMatch:
        if sent[1].nbytes != received[1].nbytes:
            raise _deadlock(_site(self.job, *sent), _site(self.job, *received))
        graph = self.job.graphs[sent[0].graph]
        return CollectiveMatch(SEND, sent[1].nbytes, tuple(members(graph, sent[1])), (sent[0], received[0]))


def check_alike(job: Job) -> None:
    """Refuse a job in which a rank shares a graph that is not there.

    >>> from foretrace.graph import Graph, OpTable
    >>> check_alike(Job([Graph(OpTable.of([]), world=2)], alike={1: 3}))
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: ranks are said to be alike rank 3, which has no graph. Give its graph, ...
    """
    lost = sorted(set(job.alike.values()) - {graph.rank for graph in job.graphs})
    if lost:
        raise ForetraceError(
            f"ranks are said to be alike rank {lost[0]}, which has no graph",
            "Give its graph, or say which other rank they are alike.",
        )


def _check_member(graph: Graph, group: str, members: Sequence[int], world: int) -> None:
    if members and not 0 <= min(members) <= max(members) < world:
        raise ForetraceError(
            f"group {group or 'without a name'} of rank {graph.rank} has ranks {min(members)} to {max(members)}, and "
            f"the job has {world}",
            "Give the world that the job ran on, or record it again.",
        )


def _site(job: Job, call: Call, collective: Collective) -> str:
    """Where in a step a collective is called."""
    graph = job.graphs[call.graph]
    said = f"rank {graph.rank} calls {collective.kind} of {collective.nbytes:,} bytes"
    if not 0 <= collective.op < len(graph.ops):
        return said
    ops, row = graph.ops, collective.op
    module = ops.modules[ops.module[row]]
    place = f"{ops.names[ops.name[row]]}, op {row}, {PHASES[ops.phase[row]]}"
    return f"{said} ({place}{f', in {module}' if module else ''})"


def _deadlock(one: str, other: str) -> ForetraceError:
    return ForetraceError(
        f"the ranks do not agree on their collectives, and would wait for each other forever: {one}; {other}",
        "All members of a group must make the same calls in the same order: look at what the two ranks do differently, "
        "or record them again where a trace may have lost one.",
    )


Found = list[tuple[int, Collective]]


def seen_by_all(graphs: list[Graph]) -> tuple[list[Graph], list[str]]:
    """The graphs without the collectives that other members' traces do not hold, and notes on these.

    What is left out stays a kernel like any other, which takes as long as it was seen to.

    >>> from foretrace.graph import Op, OpTable
    >>> def rank(*ends):
    ...     ops = OpTable.of([Op("c10d::allreduce_", start_us=end - 5.0, end_us=end) for end in ends])
    ...     return Graph(ops, collectives=[Collective("all_reduce", "0", 64, -1, row) for row in range(len(ends))])
    >>> graphs, (note,) = seen_by_all([rank(10.0, 50.0, 90.0), rank(50.5, 90.2)])
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
                f"group {called} has {counts} collectives: a trace began later, ended earlier or lost some; those in "
                "all traces, by when they ended, are simulated"
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
