"""Ranks that are made as a user supposes them to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.forecast.jobs.agreement import check_alike
from foretrace.forecast.jobs.rank import KeptRank, Rank
from foretrace.forecast.jobs.supposed import Supposed
from foretrace.forecast.jobs.together import Part
from foretrace.forecast.measured import HOST
from foretrace.graph import ForetraceError, Job
from foretrace.graph.tables import Floats

SAME_CALLS = 0.95
"""Ranks of whose host time this part is for the same calls do the same; what takes no time is not seen on all."""


def with_own_graphs(job: Job, supposed: Supposed) -> Job:
    """The job with a graph for each rank of which something is supposed about its host.

    A rank that shared another one's graph gets a copy. That is possible where all its groups are the whole job.

    >>> from foretrace.graph import Graph, Op, OpTable
    >>> job = Job([Graph(OpTable.of([Op("aten::mm")]), world=2)], alike={1: 0})
    >>> [graph.rank for graph in with_own_graphs(job, Supposed(slow_host={1: 1.2})).graphs]
    [0, 1]
    """
    check_alike(job)
    alone = sorted(job.alike.keys() & {*supposed.slow_host, *supposed.host_of, *supposed.host_of.values()})
    graphs = {graph.rank: graph for graph in job.graphs}
    for rank in alone:
        graph = graphs[job.alike[rank]]
        smaller = next((c.ranks for c in graph.collectives if c.ranks and len(c.ranks) < job.world), None)
        if smaller:
            raise ForetraceError(
                f"rank {rank} shares the graph of rank {graph.rank}, and nobody knows what its group is in place of "
                f"ranks {', '.join(map(str, smaller[:4]))}{', …' if len(smaller) > 4 else ''}",
                f"Suppose it of rank {graph.rank}.",
            )
        graphs[rank] = replace(graph, rank=rank)
    alike = {rank: other for rank, other in job.alike.items() if rank not in alone}
    return replace(job, graphs=[graphs[rank] for rank in sorted(graphs)], alike=alike)


def supposed_parts(ranks: list[Rank], supposed: Supposed) -> tuple[list[Part], list[str]]:
    """The ranks' tasks, changed as supposed, and how that was done."""
    parts, notes = {rank.graph.rank: rank.part for rank in ranks}, []
    by_number = {rank.graph.rank: rank for rank in ranks}
    for number, other in supposed.host_of.items():
        parts[number], how = _with_host_of(*(_there(by_number, one) for one in (number, other)))
        notes.append(how)
    for number, factor in supposed.slow_host.items():
        parts[number] = parts[_there(by_number, number).graph.rank].with_slower_host(factor)
    return [parts[rank.graph.rank] for rank in ranks], notes


def _there(ranks: dict[int, Rank], number: int) -> Rank:
    if number not in ranks:
        raise ForetraceError(f"rank {number} has no graph", "Suppose it of a rank that was recorded.")
    return ranks[number]


def _with_host_of(rank: Rank, other: Rank) -> tuple[Part, str]:
    """A rank with another one's host times: call by call where both do the same, else faster or slower as a whole.

    The host decides when a rank begins its step: it begins when the other does.
    """
    if not isinstance(rank, KeptRank) or not isinstance(other, KeptRank):
        raise ForetraceError("on a platform all ranks have the same host", "Leave --on out, or say --slow-host.")
    mine, theirs = _by_segment(rank), _by_segment(other)
    given = mine.copy()
    ours, likewise = _matched(_calls(rank), _calls(other))
    if len(ours) >= SAME_CALLS * max(len(mine), len(theirs)):
        given[ours] = theirs[likewise]
        how = "call by call"
    else:
        given *= theirs.sum() / mine.sum()
        how = "as a whole, since they do not make the same calls"
    part = rank.part
    host = part.kind == HOST
    duration, release = part.program.duration.copy(), part.program.release.copy()
    duration[host] = given[part.row[host]]
    earlier = other.segments.start.min() - rank.segments.start.min()
    release[host & (release > 0)] += earlier
    said = (
        f"rank {rank.graph.rank} is given the host of rank {other.graph.rank} {how}: {given.sum() / 1e3:.1f} ms of "
        f"host time instead of {mine.sum() / 1e3:.1f}, and it begins {abs(earlier) / 1e3:.1f} ms "
        f"{'later' if earlier > 0 else 'sooner'}; what its device takes stays as it was"
    )
    return replace(part, program=replace(part.program, duration=duration, release=np.maximum(release, 0.0))), said


def _by_segment(rank: KeptRank) -> Floats:
    """What each segment of a rank's host time takes, waiting apart."""
    host = np.flatnonzero(rank.part.kind == HOST)
    us = np.zeros(len(rank.segments))
    us[rank.part.row[host]] = rank.part.program.duration[host]
    return us


def _calls(rank: KeptRank) -> list[tuple[int, int, str]]:
    """What a host does, one thing after the other: on which of its threads, what kind of time, in which op."""
    ops, segments = rank.graph.ops, rank.segments
    names = [*ops.names.items, ""]
    code = np.append(ops.name, len(names) - 1)[segments.op]
    threads = np.unique(segments.thread, return_inverse=True)[1]
    return [(t, k, names[n]) for t, k, n in zip(threads.tolist(), segments.kind.tolist(), code.tolist())]


def _matched(mine: list[tuple[int, int, str]], theirs: list[tuple[int, int, str]]) -> tuple[list[int], list[int]]:
    """Rows of both that are the n-th of the same."""
    places: dict[tuple[int, int, str], list[int]] = {}
    for row, what in enumerate(theirs):
        places.setdefault(what, []).append(row)
    turns = {what: iter(rows) for what, rows in places.items()}
    pairs = [
        (row, other) for row, what in enumerate(mine) if (other := next(turns.get(what, iter(())), None)) is not None
    ]
    return [row for row, _ in pairs], [other for _, other in pairs]
