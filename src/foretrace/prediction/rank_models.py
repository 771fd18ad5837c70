"""Models of a rank: its host and kernels as they were measured on its own machine, or priced on a platform.

Both give the simulation the same things: a task graph, how far its durations may be off, and the rank's graph at
simulated times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.analysis.collectives import collective_times, members
from foretrace.analysis.critical_path import LATENCY_US
from foretrace.analysis.dependencies import (
    CLOCKS_AGREE_US,
    LAUNCHES_AHEAD,
    Pairs,
    edges,
    host_collective_kernels,
    in_time_order,
    rank_tasks,
    with_host_collectives_as_kernels,
)
from foretrace.analysis.dispatched import DispatchedCalls, dispatched_calls
from foretrace.analysis.host_time import Segments, host_segments
from foretrace.cost_models.kernels.roofline import MEASURED
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Span
from foretrace.graph.graph import cut_to_step
from foretrace.graph.tables import Floats, Ints, Longs, Small, distinct, launched_before
from foretrace.platform.platform import Platform
from foretrace.prediction.device_work import SOURCES, keeps_measured_kernels
from foretrace.prediction.priced_step import PricedStep, price_step
from foretrace.prediction.priced_tasks import STEP, at_predicted_times, priced_tasks, with_cold_host_penalty
from foretrace.prediction.uncertainty import host_spread, measured_uncertainty, priced_uncertainty
from foretrace.simulation.merge import RankTasks
from foretrace.simulation.task_graph import KERNEL, SYNC, TaskGraph, Timeline, total
from foretrace.simulation.uncertainty import Uncertainty

if TYPE_CHECKING:
    from foretrace.cost_models.collectives.contention import Contention

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Collectives that a rank may leave before all have come."""
NO_OVERLAP = np.zeros(1)
"""The measured overlap of modelled kernels: models know kernels alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankModel:
    """One rank as the simulation needs it: its tasks, their uncertainty, its collectives."""

    graph: Graph
    """Its step; its collectives are those that are matched with other ranks'."""
    tasks: RankTasks
    overlap: Floats | None
    """The share of each of its kernels that overlapped with a collective when measured; None where kernels stay as they
    are."""
    on_cpu: bool
    """Whether the CPU does the work of its calls itself."""
    measured_jitter: float | None = None
    """How far ranks on such CPUs were measured to lie apart."""
    slowdown: Contention | None = None
    """How work and communication were measured to slow each other on them; None for that of GPUs."""

    @property
    def jitter(self) -> float:
        """How far equal ranks lie apart: standard deviation of the logarithm; 0 where a device sets the pace.

        On CPUs as such ranks were measured to lie apart; or else as the steps of one do.
        """
        if self.measured_jitter is not None:
            return self.measured_jitter
        return self.step_jitter if self.on_cpu else 0.0

    @property
    def step_jitter(self) -> float:
        """How far the rank's steps lie apart."""
        raise NotImplementedError

    def at(self, times: Timeline) -> tuple[Graph, Segments]:
        """Its graph and its host time at simulated times."""
        raise NotImplementedError

    def uncertainty(self) -> Uncertainty:
        """How far its tasks' durations may be off."""
        raise NotImplementedError

    @property
    def sources(self) -> Small:
        """How the time of each kernel is known, those apart that are matched with other ranks'."""
        raise NotImplementedError

    def device_us(self) -> dict[str, float]:
        """Microseconds of its kernels, those apart that are matched with other ranks', by how they are known."""
        raise NotImplementedError

    def _matched(self, kernels: int) -> NDArray[np.bool_]:
        """For each of so many kernels, whether it is a collective that is matched with other ranks'."""
        return np.isin(np.arange(kernels), [one.kernel for one in self.graph.collectives])


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredRank(RankModel):
    """A rank with its measured host and kernel times."""

    segments: Segments
    stall: Floats
    """How much longer than typical each task waited for no visible reason: the lags of its tasks hold that."""
    stalled_us: float
    """How long any did while the device did nothing."""
    profiling_overhead: float
    """How many times as long the step took as an unprofiled one: host times are divided by that."""

    @classmethod
    def of(cls, whole: Graph, step: str | None, drop_gaps: bool = False) -> MeasuredRank:
        """A rank's step, with what ran on its device before; without what no model has, where ``drop_gaps`` says so."""
        _, cut = cut_to_step(whole, step)
        graph = with_host_collectives_as_kernels(cut)
        segments = host_segments(graph)
        if not len(segments):
            raise ForetraceError(
                f"{whole.source or f'rank {whole.rank}'} has no measured host times",
                "Give profiler traces of all ranks that hold the host's events too (ProfilerActivity.CPU), or say "
                "--on PLATFORM without --kernels measured.",
            )
        measured = measured_rank_tasks(graph, segments)
        if drop_gaps:
            measured = _without_gaps(measured, segments)
        overhead = _profiling_overhead(whole, step)
        tasks = measured.tasks.with_slower_host(1 / overhead)  # profiling slows the host
        on_cpu = not len(cut.kernels)
        return cls(
            graph=graph,
            segments=segments,
            tasks=tasks,
            stall=measured.stall,
            stalled_us=measured.stalled_us,
            overlap=None if on_cpu else measured.overlap,
            profiling_overhead=overhead,
            on_cpu=on_cpu,
        )

    def with_collectives_of(self, graph: Graph) -> MeasuredRank:
        """The rank with the collectives of a copy of its graph, in which some may be left out."""
        if len(graph.collectives) == len(self.graph.collectives):
            return replace(self, graph=graph)
        return MeasuredRank.of(graph, None)

    @property
    def host_overlap(self) -> Floats:
        """The share of each of its host tasks that overlapped with a collective, where the host does the work."""
        return measured_rank_tasks(self.graph, self.segments).overlap

    @property
    def host_us(self) -> float:
        """Host time of the step."""
        tasks = self.tasks.tasks
        return float(tasks.duration[tasks.on_host].sum())

    @property
    def unseen_ms(self) -> float:
        """How much of its marked step nothing is recorded in of the host, neither before nor after."""
        seen = float(self.segments.end.max() - self.segments.start.min()) / 1e3
        return max(self.graph.steps[0].ms - seen, 0.0) / self.profiling_overhead if self.graph.steps else 0.0

    @property
    def step_jitter(self) -> float:
        """Step jitter of its unprofiled steps."""
        return host_spread(self.graph)

    def at(self, times: Timeline) -> tuple[Graph, Segments]:
        """Its graph and its host time at simulated times."""
        return _at_simulated_times(self.graph, self.segments, self.tasks.tasks, times)

    def uncertainty(self) -> Uncertainty:
        """How much it varies from run to run."""
        return measured_uncertainty(self.graph, self.tasks.tasks)

    @property
    def sources(self) -> Small:
        """All measured."""
        return np.full(len(self.graph.kernels), MEASURED, np.int8)

    def device_us(self) -> dict[str, float]:
        """All measured."""
        kernels = self.graph.kernels
        return {SOURCES[MEASURED]: float((kernels.end - kernels.start)[~self._matched(len(kernels))].sum())}


def as_they_met(ranks: list[MeasuredRank]) -> list[MeasuredRank]:
    """The ranks, each with the collectives in which it did not wait for the last one: the root of a broadcast sends,
    and goes on. Those of unknown size take from the last rank's start to their end.
    """
    leaves = [np.zeros(len(rank.graph.collectives), bool) for rank in ranks]
    transfers: list[dict[int, float]] = [{} for _ in ranks]
    for group in collective_times([rank.graph for rank in ranks])[0] if len(ranks) > 1 else []:
        rooted = np.array([kind in ROOTED for kind in group.kinds])
        early = rooted[:, None] & (group.end < group.last_start[:, None] - CLOCKS_AGREE_US)
        transfer = group.end.mean(axis=1) - group.last_start  # their ends are one, seen by several clocks
        for column, position in enumerate(group.members):
            each = np.array([c.kernel for c in ranks[position].graph.collectives], np.int64)
            leaves[position] |= (each >= 0) & np.isin(each, group.kernel[early[:, column], column])
            transfers[position] |= dict(zip(group.kernel[:, column].tolist(), transfer.tolist()))
    return [_as_it_met(rank, early, us) for rank, early, us in zip(ranks, leaves, transfers)]


def _as_it_met(rank: MeasuredRank, early: NDArray[np.bool_], transfers: dict[int, float]) -> MeasuredRank:
    """A rank that leaves some collectives early, with the transfers of some kernels in microseconds."""
    met = [
        replace(one, us=us) if one.kernel >= 0 and one.takes_as_measured and us > 0 else one
        for one in rank.graph.collectives
        for us in [transfers.get(one.kernel, 0.0)]
    ]
    tasks = replace(rank.tasks, leaves=early) if early.any() else rank.tasks
    return replace(rank, graph=replace(rank.graph, collectives=met), tasks=tasks)


def repeated_tasks(rank: MeasuredRank, tasks: RankTasks, times: int) -> tuple[RankTasks, Longs]:
    """A measured step unrolled ``times`` times, with nothing between the copies; and where each of them ends.

    Threads and streams go on with the next step where they left the last one, and launches wait while the queue is
    full. What the device had left from before the first step is there once: it is what each step leaves to the next.

    Parameters
    ----------
    rank
        The rank.
    tasks
        Its tasks, with what is different from the measured ones.
    times
        How many steps.
    """
    one, count, kernels = tasks.tasks, len(tasks.tasks), rank.graph.kernels
    step = np.arange(times, dtype=np.int64)[:, None]
    is_kernel = one.kind == KERNEL
    of_step = ~is_kernel
    of_step[is_kernel] = ~launched_before(kernels, kernels)[one.row[is_kernel]]
    duration = np.tile(one.duration, times)
    duration[count:][~np.tile(of_step, times - 1)] = 0.0
    _, first = np.unique(one.lane[of_step], return_index=True)
    _, last = np.unique(one.lane[of_step][::-1], return_index=True)
    rows = np.flatnonzero(of_step)
    follows = edges((rows[::-1][last] + step[:-1] * count).ravel(), (rows[first] + step[1:] * count).ravel())
    queue = _queue_edges(rank, one, times)
    inside = edges((one.before + step * count).ravel(), (one.after + step * count).ravel())
    lag = np.concatenate([np.tile(one.lag, times), np.zeros(len(follows) + len(queue))])
    several = TaskGraph.of(
        duration,
        np.tile(one.lane, times),
        np.concatenate([inside, follows, queue]),
        lag,
        kind=np.tile(one.kind, times),
        row=np.tile(one.row, times),
    )
    if len(one.release):
        several = replace(several, release=np.append(one.release, np.zeros(count * (times - 1))))
    arrival = np.where(tasks.arrival >= 0, tasks.arrival + step * count, -1).ravel()
    overlapping, leaves = (None if some is None else np.tile(some, times) for some in (tasks.overlapping, tasks.leaves))
    return RankTasks(several, arrival, overlapping, leaves), (step.ravel() + 1) * count


def _queue_edges(rank: MeasuredRank, one: TaskGraph, times: int) -> Pairs:
    """A launch waits for the kernel that was launched so many launches before it, in a step before its own."""
    kernels, calls, count = rank.graph.kernels, rank.graph.calls, len(one)
    hosts, on_device = np.flatnonzero(one.on_host), np.flatnonzero(one.kind == KERNEL)
    launch = np.full(len(calls) + 1, -1)
    launch[rank.segments.call[one.row[hosts]]] = hosts
    launch[-1] = -1
    launched = on_device[launch[kernels.call[one.row[on_device]]] >= 0]
    call = kernels.call[one.row[launched]]
    order = np.argsort(calls.start[call], kind="stable")
    launched, launching = launched[order], launch[call[order]]
    place = np.arange(len(launched) * times)
    if not len(launched):
        return np.zeros((0, 2), np.int32)
    ahead = place - LAUNCHES_AHEAD
    crosses = (ahead >= 0) & (ahead // len(launched) < place // len(launched))
    (step, at), (before, what) = divmod(place[crosses], len(launched)), divmod(ahead[crosses], len(launched))
    return edges(launched[what] + before * count, launching[at] + step * count)


def _profiling_overhead(graph: Graph, step: str | None) -> float:
    """Profiling overhead of one step, where unprofiled ones were timed as well; else that of the whole trace."""
    spans = [span for span in graph.steps if span.name == step or len(graph.steps) == 1]
    if not spans or not graph.unprofiled.synced_ms:
        return graph.profiling_overhead
    return spans[0].ms / float(np.median(graph.unprofiled.synced_ms))


class MeasuredRankTasks(NamedTuple):
    """The tasks of a measured rank."""

    tasks: RankTasks
    stall: Floats
    """How much longer than typical each task waited for no visible reason: its lags hold that."""
    stalled_us: float
    """How long any of them did while the device did nothing: a stream that waits beside a busy one may lack a unit, or
    wait for an event that no trace names."""
    overlap: Floats
    """The share of each of its kernels that overlapped with a collective."""


def measured_rank_tasks(graph: Graph, segments: Segments) -> MeasuredRankTasks:
    """The tasks of a measured rank: each keeps its own time, and what held it up becomes an edge.

    Between the end of what a task waited for and its start lies a latency: the typical one, or a longer one where the
    device idled for a reason that the trace does not show. What was already running when the trace began starts when it
    did.
    """
    from foretrace.simulation.contention import measured_overlap  # priced ranks do without

    measured, timeline = in_time_order(rank_tasks(0, graph, segments))
    tasks = _without_guessed_edges(graph, measured)
    gap = timeline.start[tasks.after] - timeline.end[tasks.before]
    on_device = (measured.kind == KERNEL).astype(np.int64)
    direction = on_device[tasks.before] * 2 + on_device[tasks.after]
    lag = np.minimum(gap, _typical_latency(tasks, timeline, gap, direction)[direction])
    explained = np.full(len(tasks), -np.inf)
    np.maximum.at(explained, tasks.after, timeline.end[tasks.before] + lag)
    free = np.isneginf(explained)
    stall = np.where(free, 0.0, timeline.start - explained)
    kernel_task = np.full(len(graph.kernels), -1, np.int64)
    kernels = np.flatnonzero(measured.kind == KERNEL)
    kernel_task[measured.row[kernels]] = kernels
    arrival = np.array([kernel_task[c.kernel] if c.kernel >= 0 else -1 for c in graph.collectives], np.int64)
    tasks = replace(tasks, lag=lag + stall[tasks.after], release=np.where(free, timeline.start, 0.0))
    by_host = host_collective_kernels(graph)
    overlapping = np.isin([c.kernel for c in graph.collectives], by_host) if 0 < len(by_host) < len(kernels) else None
    rank = RankTasks(tasks, arrival, overlapping)
    call = graph.kernels.call[measured.row[kernels]]
    # Where clocks disagree by more than a launch takes, no edge says that a kernel had to be launched first.
    since_launch = timeline.start[kernels] - np.append(graph.calls.end, -np.inf)[call]
    stall[kernels] = np.clip(stall[kernels], 0.0, np.maximum(since_launch, 0.0))
    unknown = np.zeros(len(measured), bool)
    unknown[kernels] = call < 0  # launched before the step
    stalled_us = _stalled_us(measured, timeline, np.where(unknown, 0.0, stall))
    return MeasuredRankTasks(rank, stall, stalled_us, measured_overlap(rank, timeline))


def _stalled_us(tasks: TaskGraph, timeline: Timeline, stall: Floats) -> float:
    """How long a device does nothing while work is stalled for so long before it starts."""
    stalled, busy = stall > LATENCY_US, tasks.kind == KERNEL
    start, end = timeline.start[busy], timeline.end[busy]
    either = total(np.append(timeline.start[stalled] - stall[stalled], start), np.append(timeline.start[stalled], end))
    return either - total(start, end)


def _without_gaps(measured: MeasuredRankTasks, segments: Segments) -> MeasuredRankTasks:
    """The tasks without host time that has a cause of its own, and without stalls."""
    tasks = measured.tasks.tasks
    dropped = tasks.on_host & (segments.cause[np.where(tasks.on_host, tasks.row, 0)] >= 0) & (tasks.kind != SYNC)
    kept = replace(tasks, duration=np.where(dropped, 0.0, tasks.duration), lag=tasks.lag - measured.stall[tasks.after])
    return measured._replace(
        tasks=replace(measured.tasks, tasks=kept), stall=np.zeros_like(measured.stall), stalled_us=0.0
    )


def _without_guessed_edges(graph: Graph, measured: TaskGraph) -> TaskGraph:
    """The task graph in which nothing of this step's host holds up what was launched before it."""
    kernels = graph.kernels
    earlier = np.append(launched_before(kernels, kernels), False)[np.where(measured.kind == KERNEL, measured.row, -1)]
    holds = ~(earlier[measured.after] & measured.on_host[measured.before])
    waits = edges(measured.before[holds], measured.after[holds])
    return TaskGraph.of(measured.duration, measured.lane, waits, kind=measured.kind, row=measured.row)


def _typical_latency(tasks: TaskGraph, timeline: Timeline, gap: Floats, direction: Longs) -> Floats:
    """How long after what it waited for last a task starts, by whether these are on the host or the device."""
    last = np.full(len(tasks), -np.inf)
    np.maximum.at(last, tasks.after, timeline.end[tasks.before])
    decides = (timeline.end[tasks.before] == last[tasks.after]) & (gap <= LATENCY_US)
    typical = np.zeros(4)
    for one in range(4):
        gaps = gap[decides & (direction == one)]
        typical[one] = np.median(gaps) if len(gaps) else LATENCY_US
    return typical


def _at_simulated_times(graph: Graph, segments: Segments, tasks: TaskGraph, times: Timeline) -> tuple[Graph, Segments]:
    """A measured rank as it runs in a simulation: its kernels and host time there, and its calls moved with these."""
    hosts, kernels = np.flatnonzero(tasks.on_host), np.flatnonzero(tasks.kind == KERNEL)
    moved = segments.rows(np.ones(len(segments), bool))
    moved.start[tasks.row[hosts]], moved.end[tasks.row[hosts]] = times.start[hosts], times.end[hosts]
    # A wait begins when the host is there, and not when what it waits for is done.
    follows = np.flatnonzero(segments.thread[1:] == segments.thread[:-1]) + 1
    adjacent = follows[segments.start[follows] == segments.end[follows - 1]]
    moved.start[adjacent] = moved.end[adjacent - 1]
    table, ops, calls = replace(graph.kernels), replace(graph.ops), replace(graph.calls)
    table.start, table.end = graph.kernels.start.copy(), graph.kernels.end.copy()
    table.start[tasks.row[kernels]], table.end[tasks.row[kernels]] = times.start[kernels], times.end[kernels]
    for one in (ops, calls):
        one.start = _warped(one.start, one.thread, segments, moved)
        one.end = _warped(one.end, one.thread, segments, moved)
    span = Span(STEP, float(times.start.min(initial=np.inf)), float(times.end.max(initial=-np.inf)))
    return replace(
        graph, kernels=table, ops=ops, calls=calls, steps=[span], allocated=(), profiling_overhead=1.0
    ), moved


def _warped(time: Floats, thread: Ints, old: Segments, new: Segments) -> Floats:
    """Times on each thread, moved as the host time around them was."""
    result = time.copy()
    for one in distinct(old.thread):
        here, there = np.flatnonzero(old.thread == one), thread == one
        was = np.stack([old.start[here], old.end[here]], axis=1).ravel()
        then = np.stack([new.start[here], new.end[here]], axis=1).ravel()
        inside = np.interp(time[there], was, then)
        result[there] = inside + np.minimum(time[there] - was[0], 0.0) + np.maximum(time[there] - was[-1], 0.0)
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedRank(RankModel):
    """A rank with the costs of a platform. Its graph is its dispatcher calls; a collective's kernel is its row in the
    device work."""

    uncut: Graph
    dispatched: DispatchedCalls
    step: PricedStep
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        whole: Graph,
        step: str | None,
        platform: Platform,
        kernels: str | None,
        cut: Graph | None = None,
        drop_gaps: bool = False,
    ) -> PricedRank:
        """A rank's step with its costs on a platform; ``cut`` is the step, where it was cut out before."""
        cut = cut or cut_to_step(whole, step)[0]
        dispatched = dispatched_calls(cut)
        calls = dispatched.calls
        if not len(calls.ops):
            raise ForetraceError(
                f"{whole.source or f'rank {whole.rank}'} holds no calls", "Record or sketch a training step."
            )
        priced, notes = price_step(cut, dispatched, platform, kernels, drop_gaps)
        tasks = with_cold_host_penalty(priced, priced_tasks(priced, platform.device))
        work = priced.work
        row = np.full(len(calls.collectives), -1)
        row[work.collective[work.collective >= 0]] = np.flatnonzero(work.collective >= 0)
        collectives = [
            replace(one, kernel=int(kernel))
            for one, kernel in zip(calls.collectives, row)
            if kernel >= 0 or len(members(calls, one)) > 1
        ]
        on_cpu = platform.device.runs_on_host
        contends = not on_cpu and not keeps_measured_kernels(calls, platform, kernels)
        return cls(
            graph=replace(calls, collectives=collectives),
            uncut=whole,
            dispatched=dispatched,
            step=priced,
            tasks=with_arrivals(tasks, np.array([one.kernel for one in collectives], np.int64)),
            notes=tuple(notes),
            overlap=NO_OVERLAP if contends else None,
            on_cpu=on_cpu,
        )

    @property
    def step_jitter(self) -> float:
        """Step jitter of whole steps on this host."""
        return self.step.common

    def at(self, times: Timeline) -> tuple[Graph, Segments]:
        """Its graph and its host time at simulated times."""
        graph, segments = at_predicted_times(self.dispatched.calls, self.step, self.tasks.tasks, times)
        return replace(graph, collectives=self.graph.collectives), segments

    def uncertainty(self) -> Uncertainty:
        """Uncertainty of its host and of the kernel models."""
        return priced_uncertainty(self.dispatched.calls, self.step, self.tasks.tasks)

    @property
    def sources(self) -> Small:
        """Those of its device work."""
        return self.step.work.source

    @property
    def measured_collectives(self) -> bool:
        """Whether its collectives are kernels that take as measured, with their waits for other ranks."""
        work = self.step.work
        return not self.graph.collectives and bool((work.source[work.collective >= 0] == MEASURED).any())

    def device_us(self) -> dict[str, float]:
        """By the models that know them."""
        work = self.step.work
        own = ~self._matched(len(work))
        return {word: float(work.typical[own & (work.source == code)].sum()) for code, word in SOURCES.items()}


def with_arrivals(tasks: TaskGraph, kernel: Longs) -> RankTasks:
    """The tasks of a rank with its arrivals at collectives.

    ``kernel`` is the row of each of its collectives in its device work; -1 for none.
    """
    kernel_tasks = np.append(np.flatnonzero(tasks.kind == KERNEL), -1)
    return RankTasks(tasks, kernel_tasks[kernel])
