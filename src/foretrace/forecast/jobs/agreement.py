"""Which calls of several ranks are one collective: the n-th of a group on one rank is the n-th of it on all.

Ranks that do not agree on what the n-th one is would wait for each other forever; they are told of, with both calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from foretrace.forecast.collectives import EVEN, ONE_SIDED, members, peer_of
from foretrace.graph import PHASES, Collective, ForetraceError, Graph, Job

SEND = "send"


class Call(NamedTuple):
    """One rank's part in a collective."""

    graph: int
    """Position of its graph in the job."""
    number: int
    """Which of that graph's collectives."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective of all its ranks."""

    kind: str
    nbytes: int | tuple[int, ...]
    """Of each call where these differ."""
    ranks: tuple[int, ...]
    """All members, those without a graph included."""
    calls: tuple[Call, ...]
    """Of the members that have a graph."""


Queue = list[tuple[Call, Collective]]


def agreed(job: Job) -> tuple[list[Meeting], list[str]]:
    """The collectives of a job, and what had to be assumed.

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
    >>> (met,), notes = agreed(Job([rank(0), rank(1)]))
    >>> met.ranks, len(met.calls), notes
    ((0, 1), 2, [])
    """
    check_alike(job)
    groups, pairs = _Groups(job), _Pairs(job)
    for position, graph in enumerate(job.graphs):
        for number, collective in enumerate(graph.collectives):
            kind = pairs if collective.kind in ONE_SIDED else groups
            kind.add(Call(position, number), collective)
    met = [*groups.meetings(), *pairs.meetings()]
    return met, list(dict.fromkeys([*groups.notes, *pairs.notes]))


class _Groups:
    """Collectives of groups."""

    def __init__(self, job: Job) -> None:
        self.job, self.notes = job, list[str]()
        self.queues: list[dict[int, Queue]] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[int, str, int], dict[int, Queue]] = {}

    def add(self, call: Call, collective: Collective) -> None:
        # By the identity of the members: there may be thousands, and so may there be collectives.
        where = call.graph, collective.group, id(collective.ranks)
        if where not in self._known:
            group = self._group(call.graph, collective.group, collective.ranks)
            number = self._numbers.setdefault(group, len(self._numbers))
            if number == len(self.queues):
                self.queues.append({})
            self._known[where] = self.queues[number]
        self._known[where].setdefault(call.graph, []).append((call, collective))

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

    def meetings(self) -> Iterator[Meeting]:
        for by_graph in self.queues:
            for same in zip_longest(*by_graph.values()):
                yield self._meeting(same, list(by_graph))

    def _meeting(self, same: Sequence[tuple[Call, Collective] | None], positions: list[int]) -> Meeting:
        there = [one for one in same if one is not None]
        if len(there) < len(same):
            alone = self.job.graphs[positions[same.index(None)]]
            raise _hang(_site(self.job, *there[0]), f"rank {alone.rank} has no more of that group")
        (call, first), *others = there
        for other in others:
            if other[1].kind != first.kind or (other[1].nbytes != first.nbytes and first.kind in EVEN):
                raise _hang(_site(self.job, call, first), _site(self.job, *other))
        sizes = tuple(collective.nbytes for _, collective in there)
        ranks = tuple(members(self.job.graphs[call.graph], first))
        nbytes = sizes[0] if len(set(sizes)) == 1 else sizes
        return Meeting(first.kind, nbytes, ranks, tuple(call for call, _ in there))


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
            self.notes.append("traces do not name the other end of some sends: these wait for nobody")
            self.alone.append((call, collective))
            return
        _check_member(graph, collective.group, (peer, graph.rank), self.job.world)
        here, there = graph.rank, self.job.alike.get(peer, peer)
        if collective.kind == SEND:
            self.sent[here, there].append((call, collective))
        else:
            self.received[there, here].append((call, collective))

    def meetings(self) -> Iterator[Meeting]:
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
                    raise _hang(_site(self.job, call, collective), f"rank {other} has no call that meets it")
                yield self._one(call, collective)

    def _one(self, call: Call, collective: Collective) -> Meeting:
        graph = self.job.graphs[call.graph]
        return Meeting(SEND, collective.nbytes, tuple(members(graph, collective)), (call,))

    def _pair(self, sent: tuple[Call, Collective], received: tuple[Call, Collective]) -> Meeting:
        if sent[1].nbytes != received[1].nbytes:
            raise _hang(_site(self.job, *sent), _site(self.job, *received))
        graph = self.job.graphs[sent[0].graph]
        return Meeting(SEND, sent[1].nbytes, tuple(members(graph, sent[1])), (sent[0], received[0]))


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


def _hang(one: str, other: str) -> ForetraceError:
    return ForetraceError(
        f"the ranks do not agree on their collectives, and would wait for each other forever: {one}; {other}",
        "All members of a group must make the same calls in the same order: look at what the two ranks do differently, "
        "or record them again where a trace may have lost one.",
    )
