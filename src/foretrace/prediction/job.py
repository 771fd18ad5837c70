"""The simulation of a job: collectives matched and priced, ranks merged into one task graph, and when each of them does
what.

One rank alone is a job of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from foretrace import cost_models
from foretrace.analysis.collective_matching import CollectiveMatch, RankCall, match_collectives
from foretrace.analysis.host_time import Segments
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job
from foretrace.graph.tables import Floats, Ints, Longs
from foretrace.platform.device import Device
from foretrace.prediction.overrides import RankOverrides, apply_overrides
from foretrace.prediction.priced_tasks import priced_tasks
from foretrace.prediction.rank_models import MeasuredRank, PricedRank, RankModel, repeated_tasks, with_arrivals
from foretrace.simulation.engine import DeadlockError, simulate
from foretrace.simulation.merge import JobTasks, RankTasks, merge_ranks
from foretrace.simulation.task_graph import Timeline

if TYPE_CHECKING:
    from foretrace.platform.fabric import Fabric

UNROLLED_STEPS = 4
"""Steps after which the distance between ends has settled: the host is as far ahead as it gets, or never is."""
MAX_UNROLLED_TASKS = 2_000_000
"""Tasks of a step, over all ranks, up to which several steps are simulated: larger jobs go without the back-to-back
time."""


class Transfers(NamedTuple):
    """Microseconds of each collective: 10th percentile, median, 90th percentile."""

    low: Floats
    typical: Floats
    high: Floats
    alike: Ints
    """The same number for those of one kind, size and group."""


def price_transfers(
    matches: Sequence[CollectiveMatch],
    fabric: Fabric | None,
    gpus_per_node: int | None = None,
    slow_links: Mapping[int, float] | None = None,
) -> Transfers:
    """Price all collectives of a job.

    A collective is as slow as the slowest link in it: ``slow_links`` has the part of its speed that a rank's link has.
    One of unknown size takes as long as it was measured to.
    """
    slow = slow_links or {}
    known: dict[tuple[object, ...], int] = {}
    prices: list[tuple[float, float, float]] = []
    which = np.empty(len(matches), np.int32)
    for place, one in enumerate(matches):
        key = one.kind, one.nbytes, one.ranks, one.us
        if key not in known:
            known[key] = len(prices)
            # A link at half speed carries its bytes as if they were twice as many; latency stays.
            speed = min((slow.get(rank, 1.0) for rank in one.ranks), default=1.0) if slow else 1.0
            nbytes = _at_speed(one.nbytes, speed)
            if one.us:
                prices.append((one.us / speed,) * 3)
            else:
                prices.append(
                    cost_models.price_collective(fabric or _none(), one.kind, nbytes, one.ranks, gpus_per_node)
                )
        which[place] = known[key]
    each = np.array(prices).reshape(-1, 3)[which]
    return Transfers(each[:, 0], each[:, 1], each[:, 2], which)


def _none() -> Fabric:
    """The fabric of a job that names none: it prices no collective."""
    from foretrace.platform.fabric import Fabric  # one rank alone needs none

    return Fabric("none", (), "nothing is exchanged")


def _at_speed(nbytes: int | tuple[int, ...], speed: float) -> int | tuple[int, ...]:
    return round(nbytes / speed) if isinstance(nbytes, int) else tuple(round(one / speed) for one in nbytes)


class SimulatedJob(NamedTuple):
    """A job that was simulated."""

    job: Job
    ranks: Sequence[RankModel]
    matches: list[CollectiveMatch]
    transfers: Transfers
    tasks: JobTasks
    timeline: Timeline
    graphs: list[Graph]
    """The ranks at the simulated times."""
    segments: list[Segments]
    notes: list[str]


def simulate_job(
    job: Job,
    ranks: Sequence[RankModel],
    fabric: Fabric | None = None,
    overrides: RankOverrides | None = None,
    gpus_per_node: int | None = None,
) -> SimulatedJob:
    """Simulate all ranks of a job on a fabric.

    The graphs of the job are those of the ranks.
    """
    overrides = overrides or RankOverrides()
    matches, notes = visible_collectives(job, ranks)
    basis = fabric_assumptions(matches, fabric, job.world, gpus_per_node)
    transfers = price_transfers(matches, fabric, gpus_per_node, overrides.slow_link)
    changed, how = apply_overrides(ranks, overrides)
    try:
        tasks, timeline, skew = run_ranks(changed, ranks, matches, transfers.typical)
    except DeadlockError as deadlock:
        raise _deadlock(job, merge_ranks(changed, _calls(matches), transfers.typical), deadlock) from None
    if skew.any():
        notes.append(_skew_note(skew, ranks))
    if overrides.ranks:
        unchanged = price_transfers(matches, fabric, gpus_per_node).typical
        _, without, _ = run_ranks([rank.tasks for rank in ranks], ranks, matches, unchanged)
        before = without.span / 1e3
        change = timeline.span / 1e3 / before - 1
        how.append(f"without these assumptions the span is {before:.2f} ms: they change it by {100 * change:+.1f} %")
    at = [rank.at(tasks.rank_timeline(position, timeline)) for position, rank in enumerate(ranks)]
    return SimulatedJob(
        job,
        ranks,
        matches,
        transfers,
        tasks,
        timeline,
        [graph for graph, _ in at],
        [segments for _, segments in at],
        [*overrides.notes(), *how, *notes, *basis],
    )


def visible_collectives(job: Job, ranks: Sequence[RankModel]) -> tuple[list[CollectiveMatch], list[str]]:
    """The collectives that some rank arrives at, and notes on them.

    A profile that lost the kernels of a collective does not show when its rank arrived, nor which rank waited for it.
    """
    matches, notes = match_collectives(job)
    if unsized := sum(match.us > 0 for match in matches):
        notes.append(f"the size of {unsized:,} of {len(matches):,} collectives is unknown: they take as measured")
    visible = [any(ranks[graph].tasks.arrival[number] >= 0 for graph, number in match.calls) for match in matches]
    unseen = {call.graph for match, seen in zip(matches, visible) if not seen for call in match.calls}
    if unseen:
        which = ", ".join(str(job.graphs[position].rank) for position in sorted(unseen))
        notes.append(f"the device of rank {which} shows no kernel of some collectives: no rank waits for these")
    return [match for match, seen in zip(matches, visible) if seen], notes


def fabric_assumptions(
    matches: Sequence[CollectiveMatch], fabric: Fabric | None, world: int, gpus_per_node: int | None
) -> list[str]:
    """Notes on what the times of collectives rest on; there are none for one rank alone.

    >>> from foretrace.platform.fabric import Fabric
    >>> fabric_assumptions([CollectiveMatch("all_reduce", 8, (0, 1), ())], Fabric.named("h100-nvswitch"), 2, None)
    ['fabric h100-nvswitch was not measured: times come from the specification of its links']
    """
    joined = any(len(match.ranks) > 1 for match in matches)
    return cost_models.assumptions(fabric or _none(), world, gpus_per_node) if joined else []


def run_ranks(
    tasks: Sequence[RankTasks], ranks: Sequence[RankModel], matches: Sequence[CollectiveMatch], transfer_us: Floats
) -> tuple[JobTasks, Timeline, Floats]:
    """All ranks' tasks with contention, when they run, and how much later collectives start than their arrivals.

    Tasks are those of the ranks, with overrides; a transfer takes so long from the last arrival on.
    """
    alone = merge_ranks(tasks, _calls(matches), transfer_us)
    merged, timeline = _with_contention(alone, ranks, matches)
    skew, jitter = np.zeros(len(matches)), [rank.jitter for rank in ranks]
    if any(jitter):
        from foretrace.prediction.cpu_ranks import arrival_skew

        skew = arrival_skew(merged, timeline, matches, jitter)
    if skew.any():
        merged, timeline = _with_contention(alone.delayed(skew), ranks, matches)
    return merged, timeline, skew


def _with_contention(
    job: JobTasks, ranks: Sequence[RankModel], matches: Sequence[CollectiveMatch], steps: int = 1
) -> tuple[JobTasks, Timeline]:
    if len(job.tasks) == job.first[-1]:  # no collectives
        return job, simulate(job.tasks)
    from foretrace.simulation.contention import with_contention

    known = [rank.overlap for rank in ranks]
    overlap = [one if one is None or len(one) == 1 else np.tile(one, steps) for one in known]
    measured = np.tile([match.us > 0 for match in matches], steps)
    return with_contention(job, overlap, ranks[0].slowdown or cost_models.gpu_contention(), measured)


def _calls(matches: Sequence[CollectiveMatch]) -> list[tuple[RankCall, ...]]:
    return [match.calls for match in matches]


def back_to_back_ms(
    ranks: Sequence[PricedRank],
    matches: Sequence[CollectiveMatch],
    transfer_us: Floats,
    device: Device,
    slow_host: Mapping[int, float] | None = None,
) -> float | None:
    """Milliseconds from the end of one step to the end of the next, with no sync between them; None for very large
    jobs.
    """
    if sum(len(rank.tasks.tasks) for rank in ranks) > MAX_UNROLLED_TASKS:
        return None
    unrolled, ends = [], []
    for rank in ranks:
        tasks = priced_tasks(rank.step.repeated(UNROLLED_STEPS), device)
        kernel = np.array([c.kernel for c in rank.graph.collectives], np.int64)
        shift = np.arange(UNROLLED_STEPS)[:, None] * len(rank.step.work)
        several = with_arrivals(tasks, np.where(kernel >= 0, kernel + shift, -1).ravel())
        unrolled.append(several.with_slower_host((slow_host or {}).get(rank.graph.rank, 1.0)))
        ends.append(np.searchsorted(tasks.op, np.arange(1, UNROLLED_STEPS + 1) * len(rank.step)))
    return _last_period(ranks, unrolled, ends, matches, transfer_us)


def measured_period_ms(done: SimulatedJob) -> float | None:
    """Milliseconds from step to step of a measured job that does the same step again and again; None for very large
    jobs.
    """
    ranks = [rank for rank in done.ranks if isinstance(rank, MeasuredRank)]
    if sum(len(rank.tasks.tasks) for rank in ranks) > MAX_UNROLLED_TASKS:
        return None
    each = [repeated_tasks(rank, tasks, UNROLLED_STEPS) for rank, tasks in zip(ranks, done.tasks.ranks)]
    unrolled, ends = [tasks for tasks, _ in each], [last for _, last in each]
    return _last_period(ranks, unrolled, ends, done.matches, done.transfers.typical)


def _last_period(
    ranks: Sequence[RankModel],
    unrolled: Sequence[RankTasks],
    ends: Sequence[Longs],
    matches: Sequence[CollectiveMatch],
    transfer_us: Floats,
) -> float:
    """Milliseconds from the end of the last but one of several steps to the end of the last."""
    again = [
        [(graph, number + turn * len(ranks[graph].graph.collectives)) for graph, number in match.calls]
        for turn in range(UNROLLED_STEPS)
        for match in matches
    ]
    merged = merge_ranks(unrolled, again, np.tile(transfer_us, UNROLLED_STEPS))
    merged, timeline = _with_contention(merged, ranks, matches, UNROLLED_STEPS)
    each = [np.maximum.accumulate(merged.rank_timeline(at, timeline).end)[last - 1] for at, last in enumerate(ends)]
    *_, before, after = np.max(each, axis=0)
    return float(after - before) / 1e3


def _skew_note(skew: Floats, ranks: Sequence[RankModel]) -> str:
    """What was added since ranks are never equally fast."""
    by, ms = max(rank.jitter for rank in ranks), skew.sum() / 1e3
    return f"ranks with the same work are assumed to differ by {100 * by:.0f} %: they wait {ms:.1f} ms for the slowest"


def _deadlock(job: Job, merged: JobTasks, deadlock: DeadlockError) -> ForetraceError:
    """Ranks whose collectives match, but that wait for each other in a circle: groups called in another order."""
    held = []
    for task, other in deadlock.held.items():
        position = int(np.searchsorted(merged.first, task, "right")) - 1
        if position >= len(job.graphs) or other < merged.first[-1]:
            continue
        graph = job.graphs[position]
        number = int(np.flatnonzero(merged.transfer[position] == other)[0])
        one = graph.collectives[number]
        held.append(
            f"rank {graph.rank} waits in {one.kind} of group {one.group or 'without a name'} (its {number + 1}.)"
        )
    return ForetraceError(
        f"deadlock, the ranks wait for each other forever: {'; '.join(held[:4])}",
        "Groups that share ranks must be called in the same order on all of these.",
    )
