"""Collectives as measured or simulated on all ranks: which rank arrives last, how long others wait, how long the
transfer takes.

A collective's kernel runs from its rank's arrival to the common end. Up to the arrival of the last rank it waits;
from there on it transfers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.report import CollectiveRow, PairWait, StepReport
from foretrace.graph import Collective, Graph
from foretrace.graph.operators import ON_HOST
from foretrace.graph.tables import LAUNCH, Floats, Longs, median
from foretrace.simulation.task_graph import total

ONE_SIDED = ("send", "recv")
"""Kinds whose partner a trace does not name."""
EVEN = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Kinds in which all members move the same number of bytes."""
MAX_PAIRS = 100
"""Pairs of ranks that are listed with their waits: a thousand ranks have a million."""


@dataclass(eq=False)
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
    ranks: tuple[int, ...] = ()
    """All members' ranks, also of those that have no graph; empty where unknown."""

    @property
    def alone(self) -> bool:
        """Whether waits for others are part of the transfers: one member has a graph, and it is not the only one."""
        return len(self.members) == 1 != len(self.ranks)

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
    """The measured collectives of all ranks, matched by group and by order in it, without groups of which none match;
    and notes on what did not."""
    found, notes = [], []
    pairs, alone = _matched_pairs(graphs)
    if alone:
        which = "" if not pairs else f" ({alone} of them)"
        notes.append(f"send and recv are not matched across ranks{which}: their time is wait and transfer together")
    for group in [*matched_groups(graphs), *pairs]:
        notes += group.notes
        if not group.numbers[0]:
            continue
        queues = [[graphs[m].collectives[n] for n in numbers] for m, numbers in zip(group.members, group.numbers)]
        times = np.array([[times_of(graphs[m], c) for c in q] for m, q in zip(group.members, queues)], np.float64)
        start, end = times.reshape(len(queues), len(queues[0]), 2).transpose(2, 1, 0)
        first = queues[0][0]
        found.append(
            CollectiveTimes(
                group=group.name,
                members=group.members,
                kinds=[c.kind for c in queues[0]],  # of a pair, what the sender does
                nbytes=np.array([max(c.nbytes for c in same) for same in zip(*queues)], np.int64),
                kernel=np.array([[c.kernel for c in q] for q in queues], np.int64).T,
                start=start,
                end=end,
                ranks=first.ranks or graphs[group.members[0]].groups.get(first.group, ()),
            )
        )
    return found, list(dict.fromkeys(notes))


class MatchedGroup(NamedTuple):
    """The collectives of one group that all its members show, in order."""

    name: str
    members: list[int]
    """Positions of the members' graphs."""
    numbers: list[list[int]]
    """For each member, the numbers of the collectives in its graph."""
    unmatched: list[list[int]]
    """For each member, the numbers of those that some other member does not show."""
    in_order: bool
    """Whether each member shows the same in the same order."""
    notes: list[str]


def matched_groups(graphs: Sequence[Graph]) -> list[MatchedGroup]:
    """The measured collectives of all ranks, matched group by group.

    What a thread of the host runs (gloo) is apart from what devices run: where a trace does not name its groups, only
    that tells them from each other.
    """
    groups: dict[tuple[str, tuple[int, ...], bool], dict[int, list[_Seen]]] = defaultdict(dict)
    for position, graph in enumerate(graphs):
        on_host = graph.ops.names.matching(lambda name: name.startswith(ON_HOST))
        seen: list[_Seen] = []
        for number, one in enumerate(graph.collectives):
            start, end = times_of(graph, one)
            if one.kind and one.kind not in ONE_SIDED and np.isfinite(start) and np.isfinite(end):
                seen.append(_Seen(start, end, number, one))
        for found in sorted(seen, key=lambda one: one[:2]):
            one = found.collective
            host = one.op >= 0 and bool(on_host[graph.ops.name[one.op]])
            groups[one.group, one.ranks, host].setdefault(position, []).append(found)
    return [_matched(name, by_member, graphs) for (name, _, _), by_member in groups.items()]


def _matched_pairs(graphs: Sequence[Graph]) -> tuple[list[MatchedGroup], int]:
    """Sends with what receives them, by sender and receiver: the n-th from one rank to another, and the n-th there from
    it. And how many of both are left: traces do not name the other end, do not have its rank, or lost some.
    """
    ways: dict[tuple[int, int], tuple[list[_Seen], list[_Seen]]] = defaultdict(lambda: ([], []))
    place, alone = {graph.rank: position for position, graph in enumerate(graphs)}, 0
    for graph in graphs:
        for number, one in enumerate(graph.collectives):
            if one.kind in ONE_SIDED:
                peer, times = peer_of(graph, one), times_of(graph, one)
                if peer in place and peer != graph.rank and np.isfinite(times).all():
                    ends = (graph.rank, peer) if one.kind == ONE_SIDED[0] else (peer, graph.rank)
                    ways[ends][one.kind == ONE_SIDED[1]].append(_Seen(*times, number, one))
                else:
                    alone += 1
    found = []
    for (source, target), both in ways.items():
        queues = [sorted(some, key=lambda one: one[:2]) for some in both]
        places = [list(range(len(some))) for some in queues]
        if len(queues[0]) != len(queues[1]):  # those of one transfer end together, and run at one time
            ended = [[(one.end, "") for one in sorted(some, key=lambda one: one.end)] for some in queues]
            queues = [sorted(some, key=lambda one: one.end) for some in queues]
            same = zip(*(some.tolist() for some in ended_together(ended))) if all(ended) else ()
            kept = [at for at in same if _overlap([queue[i] for queue, i in zip(queues, at)])]
            places = [list(some) for some in zip(*kept)] if kept else [[], []]
        alone += sum(len(queue) - len(at) for queue, at in zip(queues, places))
        numbers = [[queue[at].number for at in some] for queue, some in zip(queues, places)]
        if numbers[0]:
            members = [place[source], place[target]]
            found.append(MatchedGroup(f"{source} to {target}", members, numbers, [[], []], True, []))
    return found, alone


class _Seen(NamedTuple):
    start: float
    end: float
    number: int
    """Which of the rank's collectives."""
    collective: Collective

    @property
    def signature(self) -> tuple[str, int]:
        """What all members agree on."""
        return self.collective.kind, self.collective.nbytes if self.collective.kind in EVEN else 0


def _matched(name: str, by_member: dict[int, list[_Seen]], graphs: Sequence[Graph]) -> MatchedGroup:
    queues, members = list(by_member.values()), list(by_member)
    orders = [[one.signature for one in queue] for queue in queues]
    in_order = all(order == orders[0] for order in orders)
    places = [np.arange(len(queue)) for queue in queues]
    notes = []
    if not in_order:
        places = _same_collectives(queues)
        called = f"group {name.removeprefix('group ') or 'without a name'}"
        counts = ", ".join(f"{len(q)} on rank {graphs[m].rank}" for m, q in by_member.items())
        if any(len(queue) > len(at) for queue, at in zip(queues, places)):
            notes.append(
                f"{called} has {counts} collectives: a trace began later, ended earlier or lost some; those in all "
                "traces are matched by when they ended"
            )
        ranks = [graphs[m].rank for m in members]
        notes += _disagreement(called, [[q[i].collective for i in at] for q, at in zip(queues, places)], ranks)
    numbers = [[queue[place].number for place in at.tolist()] for queue, at in zip(queues, places)]
    unmatched = [sorted({one.number for one in queue}.difference(seen)) for queue, seen in zip(queues, numbers)]
    return MatchedGroup(name, members, numbers, unmatched, in_order, notes)


def _same_collectives(queues: Sequence[Sequence[_Seen]]) -> list[Longs]:
    """For each rank the places, in its queue, of the collectives that all of them show.

    Queues of groups that a trace does not tell apart differ in order; then the n-th of a kind and size on one rank is
    the n-th on all. Ranks that saw as many of a kind but disagree on sizes saw the same in the same order. Where traces
    lost some, those that ended together are the same; of what is left, those of a kind and size that overlap.
    """
    signatures = [_places(one.signature for one in queue) for queue in queues]
    counts = [{signature: len(places) for signature, places in one.items()} for one in signatures]
    kinds = [[one.collective.kind for one in queue] for queue in queues]
    if all(count == counts[0] for count in counts):
        found = [[place for key in signatures[0] for place in one[key]] for one in signatures]
    elif all(kind == kinds[0] for kind in kinds):
        found = [list(range(len(queue))) for queue in queues]
    else:
        found = _ended_together(queues, [list(range(len(queue))) for queue in queues])
        for key in signatures[0]:
            left = [sorted(set(one.get(key, ())).difference(mine)) for one, mine in zip(signatures, found)]
            same = zip(*_ended_together(queues, left))
            overlapping = [places for places in same if _overlap([q[at] for q, at in zip(queues, places)])]
            found = [[*mine, *more] for mine, more in zip(found, zip(*overlapping))] if overlapping else found
    order = np.argsort(found[0], kind="stable")
    return [np.array(mine, np.int64)[order] for mine in found]


def _ended_together(queues: Sequence[Sequence[_Seen]], places: list[list[int]]) -> list[list[int]]:
    """Of some places in each queue, those of collectives of a kind that ended together."""
    ordered = [sorted(some, key=lambda at: queue[at].end) for queue, some in zip(queues, places)]
    ended = [[(queue[at].end, queue[at].collective.kind) for at in some] for queue, some in zip(queues, ordered)]
    return [[some[at] for at in same.tolist()] for some, same in zip(ordered, ended_together(ended))]


def _overlap(same: Sequence[_Seen]) -> bool:
    """Whether calls of several ranks were running at one time."""
    return max(one.start for one in same) <= min(one.end for one in same)


def _places(keys: Iterable[Hashable]) -> dict[Hashable, list[int]]:
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return dict(places)


def _disagreement(called: str, queues: list[list[Collective]], ranks: list[int]) -> list[str]:
    """A note on the first collective whose size members disagree on."""
    for index, (first, *others) in enumerate(zip(*queues)):
        for rank, other in zip(ranks[1:], others):
            if other.nbytes != first.nbytes and first.kind in EVEN:
                return [
                    f"ranks disagree on collective {index} of {called}: {first.kind} of {first.nbytes} bytes on rank "
                    f"{ranks[0]}, {other.kind} of {other.nbytes} bytes on rank {rank}"
                ]
    return []


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


def wait_ms(graphs: list[Graph], collectives: list[CollectiveTimes]) -> dict[int, float | None]:
    """For each rank, how long it waits for others: in several collectives at a time, it waits once.

    None where it meets others and none of its collectives is matched with theirs, or where it is unknown whom it meets:
    nothing is recorded of its device.
    """
    matched = {position for group in collectives if len(group.members) > 1 for position in group.members}
    communicate = _ranks_that_communicate(graphs) if len(matched) < len(graphs) else set()
    waits: dict[int, float | None] = {}
    for position, graph in enumerate(graphs):
        start, end, _ = waiting(position, collectives)
        unseen = graph.world > 1 and not len(graph.kernels) and (graph.calls.kind == LAUNCH).any()
        known = position in matched or not (graph.rank in communicate or unseen)
        waits[graph.rank] = total(start, end) / 1e3 if known else None
    return waits


def _ranks_that_communicate(graphs: list[Graph]) -> set[int]:
    """The ranks that have to communicate with others, by what any of them shows."""
    ranks: set[int] = set()
    for graph in graphs:
        for one in {(one.kind in ONE_SIDED, one.group, one.ranks, one.peer): one for one in graph.collectives}.values():
            known = one.kind in ONE_SIDED or one.ranks or graph.groups.get(one.group, ())
            taking_part = {graph.rank, *members(graph, one)}
            ranks |= taking_part if len(taking_part) > 1 or not known else set()
    return ranks


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


def add_collectives(report: StepReport, collectives: list[CollectiveTimes]) -> None:
    """Transfer and wait of the collectives of each kind and size."""
    alike: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    matched: set[tuple[str, int]] = set()
    for group in collectives:
        columns = (group.kinds, group.nbytes.tolist(), group.transfer.tolist(), group.wait.sum(axis=1).tolist())
        for kind, nbytes, transfer, wait in zip(*columns):
            alike[kind, nbytes].append((transfer / 1e3, wait / 1e3))
        matched |= set() if group.alone else set(zip(group.kinds, group.nbytes.tolist()))
    for (kind, nbytes), times in alike.items():
        transfers, waits = zip(*times)
        report.transfer_ms[kind] = report.transfer_ms.get(kind, 0.0) + sum(transfers)
        waited = sum(waits) if (kind, nbytes) in matched or report.predicted else None
        report.collectives.append(
            CollectiveRow(kind, nbytes, len(times), float(median(np.array(transfers))), sum(transfers), waited)
        )
    report.collectives.sort(key=lambda row: -(row.total_transfer_ms or 0.0))
