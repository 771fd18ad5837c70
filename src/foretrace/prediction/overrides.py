"""Overrides of single ranks: a slower host, the host of another rank, a slower link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from foretrace.analysis.collective_matching import check_alike
from foretrace.errors import check_by_rank
from foretrace.graph import ForetraceError, Job
from foretrace.graph.tables import Floats
from foretrace.prediction.rank_models import MeasuredRank, RankModel
from foretrace.simulation.merge import RankTasks

MAX_FACTOR = 1e6
"""How many times slower than it is a host or a link may be assumed to be."""
SAME_CALLS = 0.95
"""Ranks of whose host time this share is for the same calls do the same; what takes no time is not in all traces."""


@dataclass(frozen=True)
class RankOverrides:
    """Assumptions about single ranks, in place of what was measured or of what all others have.

    >>> RankOverrides(slow_host={3: 1.2}).ranks
    {3}
    """

    slow_host: Mapping[int, float] = field(default_factory=dict)
    """How many times as long the host of a rank takes."""
    host_of: Mapping[int, int] = field(default_factory=dict)
    """The rank whose host times another one is given."""
    slow_link: Mapping[int, float] = field(default_factory=dict)
    """The part of its speed that a rank's link has."""

    @property
    def ranks(self) -> set[int]:
        """All ranks with an override."""
        return {*self.slow_host, *self.host_of, *self.slow_link}

    def __post_init__(self) -> None:
        for what in ("slow_host", "host_of", "slow_link"):
            check_by_rank(getattr(self, what), what, whole=what == "host_of")
        for rank, factor in self.slow_host.items():
            if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR:
                raise ForetraceError(f"the host of rank {rank} can't take {factor:g} times as long", "Say 1.2 or so.")
        for rank, other in self.host_of.items():
            if rank == other:
                raise ForetraceError(f"rank {rank} has its own host already", "Name the host of another rank.")
        for rank, part in self.slow_link.items():
            if not 1 / MAX_FACTOR <= part <= 1:
                raise ForetraceError(
                    f"the link of rank {rank} can't have {part:g} times its speed",
                    "Give a part of it, as 0.5; 1 is all of it.",
                )

    def check(self, world: int) -> None:
        """Refuse ranks that the job does not have."""
        for rank in {*self.ranks, *self.host_of.values()}:
            if not 0 <= rank < world:
                raise ForetraceError(f"there is no rank {rank}: the job has {world}", f"Name one of 0 to {world - 1}.")

    def check_alike(self) -> None:
        """Refuse hosts of other ranks, where all ranks do what the first one does."""
        if self.host_of:
            raise ForetraceError(
                "with --world all ranks have the host of the first one", "Leave out --world, or say --slow-host."
            )

    def notes(self) -> list[str]:
        """What is assumed, for the report."""
        said = [f"rank {rank}'s host takes {factor:g} times as long" for rank, factor in self.slow_host.items()]
        said += [f"rank {rank} has the host times of rank {other}" for rank, other in self.host_of.items()]
        said += [f"rank {rank}'s link has {factor:g} times its speed" for rank, factor in self.slow_link.items()]
        return [f"assumed, not measured: {', '.join(said)}"] if said else []


def with_own_graphs(job: Job, overrides: RankOverrides) -> Job:
    """The job with a graph for each rank whose host is overridden.

    A rank that shared another one's graph gets a copy. That is possible where all its groups are the whole job.
    """
    check_alike(job)
    alone = sorted(job.alike.keys() & {*overrides.slow_host, *overrides.host_of, *overrides.host_of.values()})
    graphs = {graph.rank: graph for graph in job.graphs}
    for rank in alone:
        graph = graphs[job.alike[rank]]
        smaller = next((c.ranks for c in graph.collectives if c.ranks and len(c.ranks) < job.world), None)
        if smaller:
            raise ForetraceError(
                f"rank {rank} shares the graph of rank {graph.rank}, and its group in place of "
                f"ranks {', '.join(map(str, smaller[:4]))}{', …' if len(smaller) > 4 else ''} is unknown",
                f"Override rank {graph.rank} instead.",
            )
        graphs[rank] = replace(graph, rank=rank)
    alike = {rank: other for rank, other in job.alike.items() if rank not in alone}
    return replace(job, graphs=[graphs[rank] for rank in sorted(graphs)], alike=alike)


def apply_overrides(ranks: Sequence[RankModel], overrides: RankOverrides) -> tuple[list[RankTasks], list[str]]:
    """The ranks' tasks with the overrides, and notes on how these were applied."""
    tasks, notes = {rank.graph.rank: rank.tasks for rank in ranks}, list[str]()
    by_number = {rank.graph.rank: rank for rank in ranks}
    for number, other in overrides.host_of.items():
        tasks[number], how = _with_host_of(*(_there(by_number, one) for one in (number, other)))
        notes.append(how)
    for number, factor in overrides.slow_host.items():
        tasks[number] = tasks[_there(by_number, number).graph.rank].with_slower_host(factor)
    return [tasks[rank.graph.rank] for rank in ranks], notes


def _there(ranks: dict[int, RankModel], number: int) -> RankModel:
    if number not in ranks:
        raise ForetraceError(f"rank {number} has no graph", "Name a rank that was recorded.")
    return ranks[number]


def _with_host_of(rank: RankModel, other: RankModel) -> tuple[RankTasks, str]:
    """A rank with another one's host times: call by call where both do the same, else faster or slower as a whole.

    The host decides when a rank begins its step: it begins when the other does.
    """
    if not isinstance(rank, MeasuredRank) or not isinstance(other, MeasuredRank):
        raise ForetraceError("on a platform all ranks have the same host", "Leave --on out, or say --slow-host.")
    own_us, other_us = _by_segment(rank), _by_segment(other)
    given = own_us.copy()
    rows, other_rows = _matched(_calls(rank), _calls(other))
    if len(rows) >= SAME_CALLS * max(len(own_us), len(other_us)):
        given[rows] = other_us[other_rows]
        how = "call by call"
    else:
        given *= other_us.sum() / own_us.sum()
        how = "as a whole, since they do not make the same calls"
    tasks = rank.tasks.tasks
    host = tasks.on_host
    duration, release = tasks.duration.copy(), tasks.release.copy()
    duration[host] = given[tasks.row[host]]
    earlier = other.segments.start.min() - rank.segments.start.min()
    release[host & (release > 0)] += earlier
    said = (
        f"rank {rank.graph.rank} gets the host of rank {other.graph.rank} {how}: {given.sum() / 1e3:.1f} ms of "
        f"host time instead of {own_us.sum() / 1e3:.1f}, and it begins {abs(earlier) / 1e3:.1f} ms "
        f"{'later' if earlier > 0 else 'sooner'}; what its device takes stays as it was"
    )
    changed = replace(tasks, duration=duration, release=np.maximum(release, 0.0))
    return replace(rank.tasks, tasks=changed), said


def _by_segment(rank: MeasuredRank) -> Floats:
    """What each segment of a rank's host time takes, waiting apart."""
    tasks = rank.tasks.tasks
    host = np.flatnonzero(tasks.on_host)
    us = np.zeros(len(rank.segments))
    us[tasks.row[host]] = tasks.duration[host]
    return us


def _calls(rank: MeasuredRank) -> list[tuple[int, int, str]]:
    """What a host does, one thing after the other: on which of its threads, what kind of time, in which op."""
    ops, segments = rank.graph.ops, rank.segments
    names = [*ops.names.items, ""]
    code = np.append(ops.name, len(names) - 1)[segments.op]
    threads = np.unique(segments.thread, return_inverse=True)[1]
    return [(t, k, names[n]) for t, k, n in zip(threads.tolist(), segments.kind.tolist(), code.tolist())]


def _matched(calls: list[tuple[int, int, str]], other_calls: list[tuple[int, int, str]]) -> tuple[list[int], list[int]]:
    """Rows of both that are the n-th of the same."""
    places: dict[tuple[int, int, str], list[int]] = {}
    for row, what in enumerate(other_calls):
        places.setdefault(what, []).append(row)
    turns = {what: iter(rows) for what, rows in places.items()}
    pairs = [
        (row, other) for row, what in enumerate(calls) if (other := next(turns.get(what, iter(())), None)) is not None
    ]
    return [row for row, _ in pairs], [other for _, other in pairs]
