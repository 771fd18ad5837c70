"""The report of a measured step: from a job with times to a `StepReport`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from foretrace.analysis.breakdown import (
    STEP_MARK,
    active_and_idle,
    by_family,
    by_module,
    by_op,
    by_phase,
    communication,
    device_span,
    kernels_in,
    queue_depth,
)
from foretrace.analysis.collectives import CollectiveTimes, add_collectives, collective_times, wait_ms
from foretrace.analysis.critical_path import summarize_path
from foretrace.analysis.dependencies import measured_tasks
from foretrace.analysis.host_time import Segments, busy_ms, host_overheads, host_segments
from foretrace.analysis.idle import host_limits, idle_rows, lost_ms, mean_idle
from foretrace.analysis.report import (
    CollectiveRow,
    LimitingRank,
    QueueDepth,
    RankReport,
    StepReport,
    Unprofiled,
    Workings,
    bound_by,
    idle_by_cause,
    unrecorded_ms,
    waits_least,
)
from foretrace.analysis.step_time import step_window
from foretrace.graph import Graph, Job
from foretrace.graph.graph import (
    LATE_CLOCK,
    MISSING_DEVICES,
    MISSING_KERNELS,
    SEVERAL_DEVICES,
    chosen_step,
    cut_to_step,
)
from foretrace.graph.tables import (
    LAUNCH,
    SEVERAL,
    STREAM_BITS,
    KernelTable,
    distinct,
    launched_before,
    launches_without_kernels,
    median,
)
from foretrace.simulation.critical_path import critical_path
from foretrace.simulation.task_graph import total

RANKS_NAMED = DEVICES_NAMED = 8
"""Ranks and devices that a note names; of more, the first."""


def measure_step(job: Job | Graph, step: str | None = None) -> StepReport:
    """Where the time of a measured step goes; without ``step``, of the one of median length. A graph is a job of one
    rank.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = OpTable.of([Op("aten::mm", start_us=0.0, end_us=800.0), Op("aten::relu", start_us=900.0, end_us=1500.0)])
    >>> report = measure_step(Job([Graph(ops)]))
    >>> report.step_ms, report.overheads["T1"].ms, report.critical_path_ms
    (1.5, 0.1, 1.5)
    """
    job, iterations = Job([job]) if isinstance(job, Graph) else job, None
    if not any(graph.steps for graph in job.graphs):
        from foretrace.analysis.iterations import iteration_row, with_step  # most traces mark their steps

        job = with_step(job, step)
        iterations = iteration_row(job)
    name = chosen_step(job, step)
    cuts = [cut_to_step(graph, name) for graph in job.graphs]
    graphs, with_earlier = [cut for cut, _ in cuts], [whole for _, whole in cuts]
    segments = [host_segments(graph) for graph in graphs]
    collectives, unmatched = collective_times(graphs)
    tasks, timeline = measured_tasks(with_earlier, segments, collectives)
    path = critical_path(tasks, timeline)
    summary = summarize_path(path, tasks, timeline, with_earlier, segments)
    report = StepReport(
        source=job.source,
        world=job.world,
        missing=job.missing,
        step=name,
        steps=len(job.graphs[0].steps) if job.graphs else 0,
        iterations=iterations,
        ranks=_rank_reports(job, graphs, segments, collectives, name),
        device_span_ms=device_span(graphs),
        critical_path_ms=summary.ms,
        critical_path=summary.rows,
        critical_path_ranks=summary.by_rank,
        by_op=by_op(graphs, segments),
        by_family=by_family(graphs, segments),
        by_phase=by_phase(graphs, segments),
        by_module=by_module(graphs, segments),
        attributed=_attributed(job.graphs),
        notes=list(dict.fromkeys([*job.notes, *_trace_notes(job.graphs, graphs, name), *unmatched])),
        unprofiled=_unprofiled(job.graphs),
        workings=Workings(tasks, timeline, path, with_earlier, segments, job=job, step=name),
    )
    if not any(rank.on_device for rank in report.ranks):
        report.unrecorded_launches = sum(rank.unrecorded_launches for rank in report.ranks)
    else:
        report.notes += devices_without_record(graphs, report.ranks)
    if report.ranks:
        _add_rank_means(report, segments)
    add_collectives(report, collectives)
    if not any(graph.has_times for graph in graphs):
        report.collectives = _untimed_collectives(graphs)
    if len(graphs) > 1:
        from foretrace.analysis.stragglers import as_measured, gain_without, stragglers  # one rank has none

        report.stragglers = stragglers(graphs, collectives, report.step_ms, segments)
        late = [place for place, graph in enumerate(graphs) if graph.rank in {one.rank for one in report.stragglers}]
        report.straggler_gain_ms = gain_without(late, as_measured(tasks, timeline), timeline) if late else None
    report.notes += _without_partners(graphs, collectives)
    forget_unknown_limits(report)
    if (place := waits_least(report.ranks)) is not None and report.ranks[place].on_device:
        least = report.ranks[place]
        report.bound = least.bound
        report.limiting = LimitingRank(least.rank, least.device_idle_ms / least.step_ms if least.step_ms else 0.0)
    return report


def _rank_reports(
    job: Job, graphs: list[Graph], segments: list[Segments], collectives: list[CollectiveTimes], step: str | None
) -> list[RankReport]:
    waits, reports = wait_ms(graphs, collectives), []
    for position, (graph, whole, cut) in enumerate(zip(graphs, job.graphs, segments)):
        start, end, mark_ms = step_window(whole, step)
        kernels = kernels_in(whole, start, end)
        active, step_ms = total(kernels.start, kernels.end) / 1e3, (end - start) / 1e3
        idle = idle_rows(whole, kernels, cut, start, end, graph.ops)
        on_device, host_ms = len(kernels) or len(graph.kernels), busy_ms(cut, whole.kernels)
        reports.append(
            RankReport(
                rank=graph.rank,
                step_ms=step_ms,
                mark_ms=mark_ms,
                device_span_ms=sum(active_and_idle(graph)) / 1e3,
                device_active_ms=active,
                device_idle_ms=step_ms - active if on_device else 0.0,
                idle=idle,
                bound=bound_by(step_ms, step_ms - active, idle_by_cause(idle), host_ms) if on_device else None,
                kernel_ms=float((graph.kernels.end - graph.kernels.start).sum()) / 1e3,
                host_ms=host_ms,
                wait_ms=waits[graph.rank],
                communication=communication(
                    graph, position, collectives, kernels, (start, end), waits[graph.rank] is not None
                ),
                overheads=host_overheads([cut]),
                queue_depth=queue_depth(graph),
                # Storages live by the numbers of the uncut graph's ops.
                peak_memory_bytes=_peak_memory(graph if graph.allocated else whole),
                launched_before_ms=_launched_before_ms(whole, kernels),
                unrecorded_launches=0 if on_device else int((graph.calls.kind == LAUNCH).sum()),
            )
        )
    return reports


def forget_unknown_limits(report: StepReport) -> None:
    """Unset the limit of steps and ranks whose launched work seems not to start, where the device may have done what is
    not recorded, or has a clock that is late; and of those that the host limits unless kernels that are missing ran
    meanwhile.
    """
    _forget_hosts(report)
    doubtful = any(note.startswith((MISSING_KERNELS, LATE_CLOCK)) for note in report.notes)
    each: list[StepReport | RankReport] = [report, *report.ranks]
    for one in each:
        if one.bound == "queue" and (doubtful or unrecorded_ms(one.idle, one.device_idle_ms)):
            one.bound = None


def _forget_hosts(report: StepReport) -> None:
    """Unset the limit where it is the host only if the device idled while kernels without a record may have run."""
    if report.workings is None or not any(note.startswith(MISSING_KERNELS) for note in report.notes):
        return
    lost = [lost_ms(graph) for graph in report.workings.graphs]
    on_device = [ms for ms, rank in zip(lost, report.ranks) if rank.on_device]
    host_ms = float(np.mean([rank.host_ms for rank in report.device_ranks])) if report.ranks else 0.0
    _forget_host(report, host_ms, float(np.mean(on_device or [0.0])))
    for rank, missing_ms in zip(report.ranks, lost):
        _forget_host(rank, rank.host_ms, missing_ms)


def _forget_host(one: StepReport | RankReport, host_ms: float, missing_ms: float) -> None:
    step_ms = one.device_active_ms + one.device_idle_ms
    if one.bound == "host" and not host_limits(step_ms, one.device_idle_ms, one.idle, host_ms, missing_ms):
        one.bound = None


def _launched_before_ms(whole: Graph, kernels: KernelTable) -> float:
    """Time of a step in which the device does what was launched before the trace began."""
    earlier = kernels.rows(launched_before(whole.kernels, kernels, certain=True))
    return total(earlier.start, earlier.end) / 1e3


def _add_rank_means(report: StepReport, segments: list[Segments]) -> None:
    """What is a mean, a maximum or a sum over the ranks; what is said of devices, over those that have one."""
    ranks, have = report.ranks, report.device_ranks
    longest = max(ranks, key=lambda rank: rank.step_ms)
    report.step_ms, report.mark_ms = longest.step_ms, longest.mark_ms
    if report.unprofiled and report.unprofiled.synced_ms and report.step_ms:
        report.profiling_overhead = report.step_ms / report.unprofiled.synced_ms
    report.device_active_ms = float(np.mean([rank.device_active_ms for rank in have]))
    report.device_idle_ms = float(np.mean([rank.device_idle_ms for rank in have]))
    report.idle = mean_idle([rank.idle for rank in have])
    report.idle_causes = idle_by_cause(report.idle)
    step_ms, host_ms = (float(np.mean([getattr(rank, name) for rank in have])) for name in ("step_ms", "host_ms"))
    if any(rank.bound for rank in have):
        report.bound = bound_by(step_ms, report.device_idle_ms, report.idle_causes, host_ms)
    report.kernel_ms = float(np.mean([rank.kernel_ms for rank in have]))
    report.exposed_communication_ms = float(np.mean([rank.communication.exposed_ms for rank in have]))
    report.hidden_communication_ms = float(np.mean([rank.communication.hidden_ms for rank in have]))
    report.peak_memory_bytes = max(
        (r.peak_memory_bytes for r in ranks if r.peak_memory_bytes is not None), default=None
    )
    report.overheads = host_overheads(segments)
    depths = [rank.queue_depth for rank in have]
    report.queue_depth = QueueDepth(float(np.mean([d.mean for d in depths])), max(d.max for d in depths))


def _attributed(graphs: list[Graph]) -> float:
    """Share of the device time launched in the trace that is attributed to an op; of all, where it has no launches.

    A step mark is no op.
    """
    launched = owned = 0.0
    for graph in graphs:
        kernels, ops = graph.kernels, graph.ops
        time, known = kernels.end - kernels.start, kernels.call >= 0
        known |= not known.any()
        mark = ops.names.matching(lambda name: name.startswith(STEP_MARK))
        is_op = np.append(~mark[ops.name], False) if len(ops) else np.zeros(1, bool)
        launched += float(time[known].sum())
        owned += float(time[known & is_op[kernels.op]].sum())
    return owned / launched if launched else 1.0


def _unprofiled(graphs: list[Graph]) -> Unprofiled | None:
    """Medians over the steps of the slowest rank, and the most memory that a rank took."""
    synced = [float(median(np.array(graph.unprofiled.synced_ms))) for graph in graphs if graph.unprofiled.synced_ms]
    back_to_back = [
        float(median(np.array(graph.unprofiled.back_to_back_ms)))
        for graph in graphs
        if graph.unprofiled.back_to_back_ms
    ]
    if not synced and not back_to_back:
        return None
    return Unprofiled(
        synced_ms=max(synced, default=None),
        back_to_back_ms=max(back_to_back, default=None),
        peak_memory_bytes=max((g.unprofiled.peak_memory_bytes or 0 for g in graphs), default=0) or None,
    )


def _untimed_collectives(graphs: list[Graph]) -> list[CollectiveRow]:
    """The collectives of traces that have no times, by kind and size: as many as the rank has that calls most."""
    each = [Counter((one.kind, one.nbytes) for one in graph.collectives) for graph in graphs]
    most = {key: max(counts[key] for counts in each) for counts in each for key in counts}
    return [CollectiveRow(kind, nbytes, count, None, None, None) for (kind, nbytes), count in sorted(most.items())]


def devices_without_record(graphs: Sequence[Graph], ranks: Sequence[RankReport]) -> list[str]:
    """Notes on ranks that launch work of which the trace holds nothing, and those that show neither."""
    without = [graph for graph, rank in zip(graphs, ranks) if not rank.on_device]
    launching = [graph.rank for graph in without if (graph.calls.kind == LAUNCH).any()]
    others = [graph.rank for graph in without if graph.rank not in launching]
    whose = "devices are those of the others"
    return [
        *[f"{MISSING_DEVICES}no launch of {_named(launching)} has a kernel in the trace; {whose}"] * bool(launching),
        *[f"no device work of {_named(others)} is recorded; {whose}"] * bool(others),
    ]


def _trace_notes(whole: list[Graph], cuts: list[Graph], step: str | None) -> list[str]:
    """What traces lack, and on which ranks where not on all; kernels that only other steps lack are no caution."""
    ranks: dict[str, list[int]] = {}
    for graph, cut in zip(whole, cuts):
        for note in graph.notes:
            if note.startswith(MISSING_KERNELS):
                lost, launches = launches_without_kernels(cut.calls, cut.kernels)
                note = note if lost > SEVERAL * launches else f"in other steps, {note}"
            elif note.startswith(SEVERAL_DEVICES):
                note += f"; they work for {_device_shares(graph, step)} of the step"
            ranks.setdefault(note, []).append(graph.rank)
    return [note if len(having) == len(whole) else f"{note} ({_named(having)})" for note, having in ranks.items()]


def _device_shares(graph: Graph, step: str | None) -> str:
    """For how much of a step each of a graph's devices is active, the most active first."""
    start, end, _ = step_window(graph, step)
    kernels = kernels_in(graph, start, end)
    device, every = kernels.stream >> STREAM_BITS, distinct(graph.kernels.stream >> STREAM_BITS)
    active = (total(kernels.start[device == one], kernels.end[device == one]) for one in every)
    shares = sorted((us / ((end - start) or 1.0) for us in active), reverse=True)
    return ", ".join(f"{100 * share:.0f} %" for share in shares[:DEVICES_NAMED])


def _without_partners(graphs: list[Graph], collectives: list[CollectiveTimes]) -> list[str]:
    alone = sorted({graphs[group.members[0]].rank for group in collectives if group.alone})
    if not alone or max(graph.world for graph in graphs) == 1:
        return []
    whose = "their groups" if len(alone) > 1 else "its group"
    return [f"{_named(alone)}: no other member of {whose} has a trace of it: a transfer is wait and transfer together"]


def _named(ranks: list[int]) -> str:
    """Some ranks, of many the first.

    >>> _named([3]), _named([*range(20)])
    ('rank 3', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    shown, more = ", ".join(map(str, ranks[:RANKS_NAMED])), len(ranks) - RANKS_NAMED
    return f"rank{'s' * (len(ranks) > 1)} {shown}" + (f" and {more} more" if more > 0 else "")


def _peak_memory(graph: Graph) -> int | None:
    """Most bytes alive at once; None where the source says nothing about memory, as most profiler traces."""
    if graph.allocated or not graph.storages:
        return graph.peak_allocated
    from foretrace.analysis.memory import peak_memory

    return peak_memory(graph)
