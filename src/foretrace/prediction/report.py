"""The report of a simulated job: the same record, read off by the same functions, as that of a measured step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from foretrace.analysis.breakdown import (
    active_and_idle,
    by_family,
    by_module,
    by_op,
    by_phase,
    communication,
    device_span,
    kernels_in,
)
from foretrace.analysis.collectives import CollectiveTimes, add_collectives, pair_waits, wait_ms
from foretrace.analysis.critical_path import hot_ops, summarize_path
from foretrace.analysis.dependencies import without_host_collective_kernels
from foretrace.analysis.host_time import host_overheads
from foretrace.analysis.idle import idle_rows, mean_idle
from foretrace.analysis.iterations import iteration_row
from foretrace.analysis.measure import devices_without_record
from foretrace.analysis.report import (
    LimitingRank,
    RankReport,
    StepReport,
    Workings,
    bound_by,
    idle_by_cause,
    waits_least,
)
from foretrace.cost_models.kernels.roofline import MEASURED, MODEL
from foretrace.graph import Graph, Job
from foretrace.graph.graph import MISSING_KERNELS
from foretrace.graph.tables import LAUNCH, Small, launched_before, percentiles
from foretrace.platform.device import Device
from foretrace.prediction.device_work import SOURCES, shares
from foretrace.prediction.job import SimulatedJob
from foretrace.prediction.memory import TOO_LARGE, MemoryNeed, fullest_rank, job_memory
from foretrace.prediction.rank_models import MeasuredRank, PricedRank
from foretrace.prediction.uncertainty import PERCENTILES, job_uncertainty, sample_count
from foretrace.simulation.critical_path import critical_path
from foretrace.simulation.task_graph import SYNC, total
from foretrace.simulation.uncertainty import sample_ends


def build_report(job: Job, done: SimulatedJob, device: Device | None) -> StepReport:
    """Build the report of a simulated job.

    The job is given as it was read; the device is what every rank runs on, where its description is known.
    """
    timeline = done.timeline
    tasks = done.tasks.labelled(timeline)
    path = critical_path(tasks, timeline)
    summary = summarize_path(path, tasks, timeline, done.graphs, done.segments)
    graphs = [without_host_collective_kernels(graph) for graph in done.graphs]
    collectives = simulated_collectives(graphs, done)
    needs = job_memory(job.graphs, done.ranks, device)
    own = [_without_earlier(graph, len(whole.steps)) for graph, whole in zip(graphs, job.graphs)]
    ranks = _rank_reports(job, own, done, collectives, {place: need.allocated for place, need in needs.items()})
    seen = [graph for graph in graphs if len(graph.kernels)] or graphs
    have = [rank for rank, graph in zip(ranks, graphs) if len(graph.kernels)] or ranks
    step_ms = timeline.span / 1e3
    report = StepReport(
        source=job.source,
        world=job.world,
        missing=job.missing,
        platform="",
        iterations=iteration_row(job),
        step_ms=step_ms,
        device_span_ms=device_span(own),
        kernel_ms=float(np.mean([rank.kernel_ms for rank in have])),
        kernels=round(float(np.mean([(~launched_before(g.kernels, g.kernels, certain=True)).sum() for g in seen]))),
        exposed_communication_ms=float(np.mean([rank.communication.exposed_ms for rank in have])),
        hidden_communication_ms=float(np.mean([rank.communication.hidden_ms for rank in have])),
        memory_bytes=device.memory_bytes if device else 0,
        coverage=_coverage(done),
        critical_path_ms=summary.ms,
        critical_path=summary.rows,
        critical_path_ranks=summary.by_rank,
        ranks=ranks,
        waits_for=pair_waits(graphs, collectives),
        look_at=hot_ops(path, tasks, timeline, done.graphs, done.segments),
        overheads=host_overheads(done.segments),
        by_op=by_op(own, done.segments),
        by_family=by_family(own, done.segments),
        by_phase=by_phase(own, done.segments),
        by_module=by_module(own, done.segments),
    )
    if (need := fullest_rank(needs)) is not None:
        _add_memory(report, need)
    if len(graphs) > 1:
        from foretrace.analysis.stragglers import gain_without, stragglers

        report.stragglers = stragglers(graphs, collectives, step_ms, done.segments)
        late = [place for place, graph in enumerate(graphs) if graph.rank in {one.rank for one in report.stragglers}]
        report.straggler_gain_ms = gain_without(late, tasks, timeline) if late else None
    add_idle(report, done, [(0.0, timeline.span)] * len(graphs))
    _add_unrecorded(report, graphs)
    samples = _centred(sample_step_ms(done), step_ms, measured=isinstance(done.ranks[0], MeasuredRank))
    low, high = percentiles(samples, PERCENTILES)
    report.low_ms, report.high_ms = min(low, step_ms), max(high, step_ms)
    add_collectives(report, collectives)
    sources, ranges = _kernel_sources(done), _kernel_ranges(done)
    report.workings = Workings(
        tasks, timeline, path, done.graphs, done.segments, device, sources, ranges, samples, collectives
    )
    return report


def _add_unrecorded(report: StepReport, graphs: list[Graph]) -> None:
    """Say that work was launched on a device of which nothing is known: then it isn't idle, nor all on the host, and
    how long its rank waits is unknown."""
    for rank, graph in zip(report.ranks, graphs):
        rank.unrecorded_launches = 0 if len(graph.kernels) else int((graph.calls.kind == LAUNCH).sum())
    if any(len(graph.kernels) for graph in graphs):
        for rank in report.ranks:
            rank.wait_ms = None if rank.unrecorded_launches else rank.wait_ms
        report.notes += devices_without_record(graphs, report.ranks)
        return
    report.unrecorded_launches = launches = sum(rank.unrecorded_launches for rank in report.ranks)
    if launches:
        report.notes.append(
            f"{MISSING_KERNELS}none of the {launches:,} launches has one in the trace; what the device does, and how "
            "long, is unknown"
        )


def _add_memory(report: StepReport, need: MemoryNeed) -> None:
    """What the fullest rank needs, and whether that is there."""
    report.peak_memory_bytes, report.reserved_memory_bytes = need.allocated, need.reserved
    report.memory_by_kind, report.memory_verdict, report.memory_margin_bytes = need.by_kind, need.verdict, need.margin
    report.fits = None if need.verdict is None else need.verdict != TOO_LARGE


def _centred(samples: np.ndarray, step_ms: float, measured: bool) -> np.ndarray:
    """Samples around the step: what was measured has its own spread already, and samples of more are all longer."""
    low, high = percentiles(samples, PERCENTILES)
    if low < step_ms < high and not measured:
        return samples
    return np.asarray(samples * (step_ms / percentiles(samples, [50])[0]))


def set_range(report: StepReport, step_ms: float, low_ms: float, high_ms: float) -> None:
    """Give a report another step time and range; its samples are moved with them.

    >>> report = StepReport(step_ms=2.0, low_ms=1.0, high_ms=4.0)
    >>> set_range(report, 20.0, 10.0, 40.0)
    >>> report.step_ms, report.low_ms, report.high_ms
    (20.0, 10.0, 40.0)
    """
    before, after = (report.low_ms, report.step_ms, report.high_ms), (low_ms, step_ms, high_ms)
    report.low_ms, report.step_ms, report.high_ms = after
    if report.workings is None or None in before or min(*before, *after) <= 0:
        return
    old, new = np.log(np.array(before, float)), np.log(np.array(after, float))
    # On each side of the step by as much as that end of the range.
    grows = np.divide(np.diff(new), np.diff(old), out=np.ones(2), where=np.diff(old) > 0)
    samples = report.workings.samples_ms
    far = np.log(np.maximum(samples, np.finfo(float).tiny)) - old[1]
    moved = np.exp(new[1] + far * np.where(far < 0, *grows))
    report.workings = replace(report.workings, samples_ms=moved)


def _kernel_sources(done: SimulatedJob) -> list[Small]:
    """How the time of each kernel is known, rank by rank: transfers are priced by the fabric where their size is."""
    sources = [rank.sources.copy() for rank in done.ranks]
    for match, rank, kernel in _matched_kernels(done):
        sources[rank][kernel] = MEASURED if done.matches[match].us else MODEL
    return sources


def _kernel_ranges(done: SimulatedJob) -> list[tuple[np.ndarray, np.ndarray]]:
    """The 10th and the 90th percentile of each kernel, rank by rank; none where a rank's kernels were measured."""
    priced = [rank.step.work for rank in done.ranks if isinstance(rank, PricedRank)]
    if len(priced) < len(done.ranks):
        return []
    ranges = [(work.low.copy(), work.high.copy()) for work in priced]
    for match, rank, kernel in _matched_kernels(done):
        for ends, of_transfers in zip(ranges[rank], (done.transfers.low, done.transfers.high)):
            ends[kernel] = of_transfers[match]
    return ranges


def _matched_kernels(done: SimulatedJob) -> Iterator[tuple[int, int, int]]:
    """Each match with the ranks that have a kernel of it, and its row there."""
    for number, match in enumerate(done.matches):
        for call in match.calls:
            kernel = done.ranks[call.graph].graph.collectives[call.number].kernel
            if kernel >= 0:
                yield number, call.graph, kernel


def sample_step_ms(done: SimulatedJob) -> np.ndarray:
    """Step times with durations drawn anew for each sample."""
    tasks, transfers = done.tasks.tasks, done.transfers
    every = job_uncertainty([rank.uncertainty() for rank in done.ranks], transfers[:3], transfers.alike)
    return (sample_ends(tasks, every, sample_count(len(tasks))) - float(done.timeline.start.min())) / 1e3


def _coverage(done: SimulatedJob) -> dict[str, float]:
    """Share of the device time by how it is known; waiting is not part of it."""
    us: dict[str, float] = defaultdict(float)
    for rank in done.ranks:
        for source, time in rank.device_us().items():
            us[source] += time
    for match, time in zip(done.matches, done.transfers.typical.tolist()):
        us[SOURCES[MEASURED if match.us else MODEL]] += time * len(match.calls)
    return shares(us)


def add_idle(report: StepReport, done: SimulatedJob, windows: Sequence[tuple[float, float]]) -> None:
    """Add device time and idle time by cause, in the time window of each rank, and what limits the step."""
    graphs = [without_host_collective_kernels(graph) for graph in done.graphs]
    kernels = [kernels_in(graph, *window) for graph, window in zip(graphs, windows)]
    for rank, graph, table in zip(report.ranks, graphs, kernels):
        earlier = table.rows(launched_before(graph.kernels, table, certain=True))
        rank.launched_before_ms = total(earlier.start, earlier.end) / 1e3
    have = [place for place, graph in enumerate(graphs) if len(graph.kernels)] or range(len(graphs))
    active_ms = [total(table.start, table.end) / 1e3 for table in kernels]
    window_ms = [(end - start) / 1e3 for start, end in windows]
    idle = {at: idle_rows(graphs[at], kernels[at], done.segments[at], *windows[at], graphs[at].ops) for at in have}
    report.device_active_ms = float(np.mean([active_ms[at] for at in have]))
    report.device_idle_ms = max(float(np.mean([window_ms[at] for at in have])) - report.device_active_ms, 0.0)
    report.idle = mean_idle(list(idle.values()))
    report.idle_causes = idle_by_cause(report.idle)
    place = waits_least(report.ranks)
    limiting = [place] if place in idle else list(have)
    step_ms = float(np.mean([window_ms[at] for at in limiting]))
    idle_ms = max(step_ms - float(np.mean([active_ms[at] for at in limiting])), 0.0)
    hosts = [report.ranks[at] for at in limiting] if place in idle else report.ranks
    # A priced kernel that was launched starts when the device is free.
    measured = all(isinstance(rank, MeasuredRank) for rank in done.ranks)
    causes = idle_by_cause(mean_idle([idle[at] for at in limiting])) if measured else {}
    host_ms = float(np.mean([rank.host_ms for rank in hosts]))
    report.bound = bound_by(step_ms, idle_ms, causes, host_ms) if report.kernels else None
    if place in idle and step_ms:
        report.limiting = LimitingRank(hosts[0].rank, idle_ms / step_ms)


def _without_earlier(graph: Graph, steps: int) -> Graph:
    """A rank without what the step before left on its device; in a trace of one step that is this one's."""
    earlier = launched_before(graph.kernels, graph.kernels)
    return replace(graph, kernels=graph.kernels.rows(~earlier)) if steps > 1 and earlier.any() else graph


def _rank_reports(
    job: Job, graphs: list[Graph], done: SimulatedJob, collectives: list[CollectiveTimes], peaks: dict[int, int]
) -> list[RankReport]:
    """A report for each rank that has a graph."""
    span, waits = device_span(graphs), wait_ms(graphs, collectives)
    begin = min((step.start for graph in graphs for step in graph.steps), default=0.0)
    reports = []
    for position, graph in enumerate(graphs):
        talk = communication(graph, position, collectives, knows_waits=waits[graph.rank] is not None)
        active, idle = (us / 1e3 for us in active_and_idle(graph))
        (step,) = graph.steps
        reports.append(
            RankReport(
                rank=graph.rank,
                step_ms=step.ms,
                start_ms=(step.start - begin) / 1e3,
                stands_for=1 + sum(other == graph.rank for other in job.alike.values()),
                device_span_ms=active + idle,
                device_active_ms=active,
                device_idle_ms=idle,
                kernel_ms=float((graph.kernels.end - graph.kernels.start).sum()) / 1e3,
                host_ms=_host_us(done, position) / 1e3,
                wait_ms=waits[graph.rank] or 0.0,  # a rank without partners stands for them
                communication=talk,
                bubble_ms=max(span - active + (talk.exposed_wait_ms or 0.0), 0.0) if span else 0.0,
                peak_memory_bytes=peaks.get(position),
            )
        )
    return reports


def _host_us(done: SimulatedJob, position: int) -> float:
    """Host time of a rank; a priced sync is only the latency of the device's signal."""
    tasks = done.tasks.ranks[position].tasks
    priced = isinstance(done.ranks[position], PricedRank)
    return float(tasks.duration[tasks.kind < SYNC if priced else tasks.on_host].sum())


def simulated_collectives(graphs: list[Graph], done: SimulatedJob) -> list[CollectiveTimes]:
    """When the ranks of each group arrive at its collectives and leave them, in the order these began."""
    matches, merged, timeline = done.matches, done.tasks, done.timeline
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, match in enumerate(matches):
        members = tuple(call.graph for call in match.calls)
        if len(set(members)) == len(members) == len(merged.arrivals[number]):
            groups[members].append(number)
    first = int(merged.first[-1])
    found = []
    for members, numbers in groups.items():
        numbers.sort(key=lambda number: timeline.start[first + number])
        start = np.array([timeline.start[merged.arrivals[number]] for number in numbers])
        stays = np.array([[merged.ranks[call.graph].stays[call.number] for call in matches[n].calls] for n in numbers])
        own = np.array([timeline.end[merged.arrivals[number]] for number in numbers])
        end = np.where(stays, timeline.end[first + np.array(numbers)][:, None], own)
        calls = [matches[number].calls for number in numbers]
        kernel = [[graphs[call.graph].collectives[call.number].kernel for call in some] for some in calls]
        sizes = [matches[number].nbytes for number in numbers]
        found.append(
            CollectiveTimes(
                group=graphs[members[0]].collectives[calls[0][0].number].group,
                members=list(members),
                kinds=[matches[number].kind for number in numbers],
                nbytes=np.array([size if isinstance(size, int) else max(size) for size in sizes], np.int64),
                kernel=np.array(kernel, np.int64),
                start=start,
                end=end,
            )
        )
    return found
