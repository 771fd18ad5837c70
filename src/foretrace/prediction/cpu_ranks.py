"""Ranks on CPUs: oversubscribed processors, jitter between ranks, and the skew with which they arrive at collectives.

Where CPUs do the work themselves, each process on its own, the time of a rank varies from step to step and from rank to
rank; all wait for the last one, so that a typical rank waits for as long as the last of so many is expected to be
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from foretrace.analysis.collective_matching import CollectiveMatch
from foretrace.cost_models.collectives.contention import Contention, oversubscription
from foretrace.graph.tables import Floats
from foretrace.platform.fabric import CpuOverlap, Fabric
from foretrace.prediction.rank_models import NO_OVERLAP, MeasuredRank, PricedRank
from foretrace.simulation.merge import JobTasks, RankTasks
from foretrace.simulation.task_graph import Timeline

SomeRank = TypeVar("SomeRank", MeasuredRank, PricedRank)
MEASURED = "measured with the fabric"


def with_oversubscription(
    ranks: Sequence[SomeRank], fabric: Fabric, world: int, was: int, per_node: int | None
) -> tuple[list[SomeRank], list[str]]:
    """The ranks slowed down and spread by sharing one machine's processors, and notes on that.

    Ranks that have devices, or whose oversubscription was not measured, stay as they are.

    So many as ``was`` worked at once when their times were measured.
    """
    most = per_node or fabric.gpus_per_node
    now, before = (oversubscription(fabric, min(count, most)) for count in (world, was))
    if now is None or before is None or not all(rank.on_cpu for rank in ranks):
        return list(ranks), []
    slower = now.slower / before.slower
    known = fabric.crowd[-1].ranks
    jitter = now.behind / expected_last(min(now.ranks, known)) if min(now.ranks, known) > 1 else 0.0
    changed = [replace(one, measured_jitter=jitter, tasks=one.tasks.with_slower_host(slower)) for one in ranks]
    if fabric.beside:
        changed = [_communicating(one, fabric.beside, more=now.ranks != before.ranks) for one in changed]
    if now.ranks == before.ranks:
        return changed, []
    than = f"{now.ranks} ranks at once take {slower:.2f} times as long as {before.ranks}"
    beyond = f", where {known} were measured at most: more are taken to be as slow" if now.ranks > known else ""
    return changed, [f"ranks share processors: {than} on fabric {fabric.name}{beyond}"]


def as_typical(ranks: Sequence[MeasuredRank], measured: Sequence[MeasuredRank]) -> tuple[list[MeasuredRank], list[str]]:
    """Ranks that stand for many others, with the mean host speed of the measured ones; and notes on that.

    Which of these was the first, and how fast its processor just then, says nothing of other ranks. Ranks that have
    devices stay as they are.
    """
    if not all(rank.on_cpu for rank in [*ranks, *measured]) or len(measured) < 2:
        return list(ranks), []
    times = float(np.mean([rank.host_us for rank in measured])) / measured[0].host_us
    said = f"the host takes {times:.2f} times as long as that of rank {measured[0].graph.rank} did"
    changed = [replace(one, tasks=one.tasks.with_slower_host(times)) for one in ranks]
    return changed, [f"{said}: the mean of all {len(measured)} measured ranks"]


def _communicating(rank: SomeRank, seen: CpuOverlap, more: bool) -> SomeRank:
    """A rank whose work and communication slow each other.

    Measured work was slowed already: only longer communication than measured, in a larger job, slows it more.
    """
    law = Contention(seen.work, 0.0, MEASURED, seen.transfer, MEASURED, spins=False)
    if isinstance(rank, PricedRank):
        return replace(rank, slowdown=law, overlap=NO_OVERLAP)
    if more:
        return replace(rank, slowdown=law, overlap=rank.host_overlap)
    return replace(rank, slowdown=replace(law, factor=1.0), overlap=NO_OVERLAP)


def expected_last(ranks: int) -> float:
    """The expected maximum of so many standard normal values (Blom's approximation): how late the last rank comes.

    >>> [round(expected_last(ranks), 2) for ranks in (1, 2, 8)]
    [0.0, 0.59, 1.43]
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def arrival_skew(
    job: JobTasks, timeline: Timeline, matches: Sequence[CollectiveMatch], jitter: Sequence[float]
) -> Floats:
    """How much later than its arrivals each collective starts, since some of its ranks have no graph of their own.

    The job has the ranks with a graph; jitter is the standard deviation of the logarithm of what each of them takes.
    """
    late, transfers = np.zeros(len(matches)), int(job.first[-1])
    for position, spread in enumerate(jitter):
        if not spread:
            continue
        for number, busy in _busy_before(job, position, timeline):
            match = matches[number - transfers]
            if len(match.ranks) > len(match.calls):
                behind = expected_last(len(match.ranks)) * spread * busy
                late[number - transfers] = max(late[number - transfers], behind)
    return late


def _busy_before(job: JobTasks, position: int, timeline: Timeline) -> list[tuple[int, float]]:
    """For each collective of a rank its transfer, and how long the rank worked since it last waited for one.

    Ranks do not meet between steps: before the first one it worked since the last one of the step before.
    """
    rank, first = job.ranks[position], int(job.first[position])
    matched = np.flatnonzero((rank.arrival >= 0) & (job.transfer[position] >= 0))
    arrival, transfer = rank.arrival[matched], job.transfer[position][matched]
    edge, which = rank.arrival_edges
    holds = ~np.isin(
        rank.tasks.after[edge], rank.arrival
    )  # a collective that follows another one does not hold up the host
    waiting = np.full(len(rank.arrival), len(rank.tasks))
    np.minimum.at(waiting, which[holds], rank.tasks.after[edge[holds]])
    here = slice(first, first + len(rank.tasks))
    waited = timeline.end[transfer[waiting[matched] < len(rank.tasks)]]
    left = float(timeline.end[here].max(initial=-np.inf) - waited.max()) if len(waited) else 0.0
    begins = float(timeline.start[here].min(initial=np.inf)) - max(left, 0.0)
    found = []
    for task, number in zip(arrival.tolist(), transfer.tolist()):
        done = timeline.end[transfer[waiting[matched] <= _issuing(rank, task)]]
        since = max(begins, float(done.max(initial=-np.inf)))
        found.append((number, max(float(timeline.start[first + task]) - since, 0.0)))
    return found


def _issuing(rank: RankTasks, arrival: int) -> int:
    """The last task that a collective waits for on its own rank: the one that issues it."""
    before = rank.tasks.before[rank.tasks.first[arrival] : rank.tasks.first[arrival + 1]]
    own = before[~np.isin(before, rank.arrival)]
    return int(own.max(initial=-1))
