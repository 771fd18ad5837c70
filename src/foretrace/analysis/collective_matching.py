"""Matching collectives across ranks: the n-th of a group on one rank is the n-th of it on all.

Ranks that do not agree on what the n-th one is would deadlock; the error names both calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from foretrace.analysis.collectives import EVEN, ONE_SIDED, matched_groups, members, peer_of
from foretrace.graph import PHASES, Collective, ForetraceError, Graph, Job

SEND = "send"


class RankCall(NamedTuple):
    """One rank's part in a collective."""

    graph: int
    """Position of its graph in the job."""
    number: int
    """Which of that graph's collectives."""


class CollectiveMatch(NamedTuple):
    """One collective as it appears on every participating rank.

    Matched by process group and order, not by time: hosts drift, and a late rank is what we want to find.
    """

    kind: str
    nbytes: int | tuple[int, ...]
    """Of each call where these differ."""
    ranks: tuple[int, ...]
    """All members, those without a graph included."""
    calls: tuple[RankCall, ...]
    """Of the members that have a graph."""
    us: float = 0.0
    """Measured microseconds on the member that waited least, where its kind or size is unknown; 0 elsewhere."""


Queue = list[tuple[RankCall, Collective]]


def match_collectives(job: Job) -> tuple[list[CollectiveMatch], list[str]]:
    """The collectives of a job, matched across its ranks, and notes on what had to be assumed.

    Refused where ranks disagree on the order or the size of what they do together: such a job hangs. One that was
    measured did not: `seen_by_all` numbers its collectives where their order differs.

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
            kind.add(RankCall(position, number), collective)
    matches = [*groups.matches(), *pairs.matches()]
    return matches, list(dict.fromkeys([*groups.notes, *pairs.notes]))


class _Groups:
    """Collectives of groups."""

    def __init__(self, job: Job) -> None:
        self.job, self.notes = job, list[str]()
        self.queues: list[dict[int, Queue]] = []
        self.numbered: dict[int, Queue] = defaultdict(list)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[int, str], list[tuple[tuple[int, ...], dict[int, Queue]]]] = defaultdict(list)

    def add(self, call: RankCall, collective: Collective) -> None:
        if collective.match >= 0:
            self.numbered[collective.match].append((call, collective))
        else:
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
                yield self._agreed(same, list(by_graph))
        yield from map(self._match, self.numbered.values())

    def _agreed(self, same: Sequence[tuple[RankCall, Collective] | None], positions: list[int]) -> CollectiveMatch:
        there = [one for one in same if one is not None]
        if len(there) < len(same):
            alone = self.job.graphs[positions[same.index(None)]]
            raise _deadlock(_site(self.job, *there[0]), f"rank {alone.rank} has no more of that group")
        (call, first), *others = there
        for other in others:
            if other[1].kind != first.kind or (other[1].nbytes != first.nbytes and first.kind in EVEN):
                raise _deadlock(_site(self.job, call, first), _site(self.job, *other))
        return self._match(there)

    def _match(self, there: Queue) -> CollectiveMatch:
        (call, first), *_ = there
        sizes = tuple(collective.nbytes for _, collective in there)
        nbytes = max(sizes) if len(set(sizes)) == 1 or first.kind in EVEN else sizes
        ranks = tuple(members(self.job.graphs[call.graph], first))
        return CollectiveMatch(first.kind, nbytes, ranks, tuple(call for call, _ in there), _measured_us(there))


def _measured_us(calls: Queue) -> float:
    """How long a collective of unknown size took without waiting: on the member that came last."""
    if any(one.is_sized for _, one in calls):
        return 0.0
    return min((one.us for _, one in calls if one.us > 0), default=0.0)


class _Pairs:
    """Sends and receives: the n-th from one rank to another, and the n-th there from it."""

    def __init__(self, job: Job) -> None:
        self.job, self.notes = job, list[str]()
        self.measured = any(graph.has_times for graph in job.graphs)
        self.sent: dict[tuple[int, int], Queue] = defaultdict(list)
        self.received: dict[tuple[int, int], Queue] = defaultdict(list)
        self.alone: Queue = []

    def add(self, call: RankCall, collective: Collective) -> None:
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
                if known.issuperset(way) and not self.measured:
                    other = way[collective.kind == SEND]
                    raise _deadlock(_site(self.job, call, collective), f"rank {other} has no call that matches it")
                yield self._one(call, collective)

    def _one(self, call: RankCall, collective: Collective) -> CollectiveMatch:
        graph = self.job.graphs[call.graph]
        ends = tuple(members(graph, collective))
        return CollectiveMatch(SEND, collective.nbytes, ends, (call,), _measured_us([(call, collective)]))

    def _pair(self, sent: tuple[RankCall, Collective], received: tuple[RankCall, Collective]) -> CollectiveMatch:
        if sent[1].nbytes != received[1].nbytes and not self.measured:
            raise _deadlock(_site(self.job, *sent), _site(self.job, *received))
        graph = self.job.graphs[sent[0].graph]
        nbytes, ends = max(sent[1].nbytes, received[1].nbytes), tuple(members(graph, sent[1]))
        return CollectiveMatch(SEND, nbytes, ends, (sent[0], received[0]), _measured_us([sent, received]))


def check_alike(job: Job) -> None:
    """Refuse a job in which a rank shares a graph that is not there.

    >>> from foretrace.graph import Graph, OpTable
    >>> check_alike(Job([Graph(OpTable.of([]), world=2)], alike={1: 3}))
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: some ranks are declared equal to rank 3, which has no graph. Give its graph, ...
    """
    lost = sorted(set(job.alike.values()) - {graph.rank for graph in job.graphs})
    if lost:
        raise ForetraceError(
            f"some ranks are declared equal to rank {lost[0]}, which has no graph",
            "Give its graph, or name another rank that they equal.",
        )


def _check_member(graph: Graph, group: str, members: Sequence[int], world: int) -> None:
    if members and not 0 <= min(members) <= max(members) < world:
        raise ForetraceError(
            f"group {group or 'without a name'} of rank {graph.rank} has ranks {min(members)} to {max(members)}, and "
            f"the job has {world}",
            "Give the world that the job ran on, or record it again.",
        )


def _site(job: Job, call: RankCall, collective: Collective) -> str:
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


def seen_by_all(graphs: list[Graph], leave_out: bool = True) -> tuple[list[Graph], list[str]]:
    """The graphs without the collectives that other members' traces do not hold, and notes on these.

    What is left out stays a kernel like any other, which takes as long as it was seen to; with ``leave_out=False`` it
    stays, as a collective that waits for no other rank. Collectives that ranks do not show in the same order are
    numbered.

    >>> from foretrace.graph import Op, OpTable
    >>> def rank(*ends):
    ...     ops = OpTable.of([Op("c10d::allreduce_", start_us=end - 5.0, end_us=end) for end in ends])
    ...     return Graph(ops, collectives=[Collective("all_reduce", "0", 64, -1, row) for row in range(len(ends))])
    >>> graphs, (note,) = seen_by_all([rank(10.0, 50.0, 90.0), rank(50.5, 90.2)])
    >>> [len(graph.collectives) for graph in graphs]
    [2, 2]
    """
    alone = [[number for number, one in enumerate(graph.collectives) if not one.kind] for graph in graphs]
    unknown = sum(map(len, alone))
    notes = [f"{unknown} collectives of unknown kind stay as they were measured"] if unknown else []
    matches: list[dict[int, int]] = [{} for _ in graphs]
    count = 0
    for group in matched_groups(graphs) if len(graphs) > 1 else []:
        notes += group.notes
        for position, numbers, unmatched in zip(group.members, group.numbers, group.unmatched):
            alone[position] += unmatched
            if not group.in_order:
                matches[position] |= dict(zip(numbers, range(count, count + len(numbers))))
        count += len(group.numbers[0])
    if not leave_out:
        for known, numbers in zip(matches, alone):
            known |= dict(zip(numbers, range(count, count + len(numbers))))
            count += len(numbers)
            numbers.clear()
    return [_numbered(graph, known, set(gone)) for graph, known, gone in zip(graphs, matches, alone)], notes


def _numbered(graph: Graph, matches: dict[int, int], lost: set[int]) -> Graph:
    if not lost and not matches:
        return graph
    stay = [(number, one) for number, one in enumerate(graph.collectives) if number not in lost]
    return replace(graph, collectives=[replace(one, match=matches.get(number, -1)) for number, one in stay])
