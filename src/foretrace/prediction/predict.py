"""Predicting a job: on its own machine as measured, or on a platform. One rank is a job of one.

Job ─▶ RankModel (measured | priced), one per rank ─▶ TaskGraph ─▶ Timeline ─▶ StepReport
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from foretrace.analysis.activities import ALLOCATION, MEANINGS
from foretrace.analysis.collective_matching import seen_by_all
from foretrace.analysis.iterations import with_step
from foretrace.analysis.measure import forget_unknown_limits
from foretrace.analysis.report import OWN_MACHINE, StepReport
from foretrace.analysis.step_time import neighbours, window_of
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job, Span
from foretrace.graph.graph import chosen_step, cut_to_step
from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.platform.power import PowerModel
from foretrace.prediction.device_work import keeps_measured_kernels
from foretrace.prediction.job import (
    SimulatedJob,
    back_to_back_ms,
    fabric_assumptions,
    measured_period_ms,
    price_transfers,
    run_ranks,
    simulate_job,
    visible_collectives,
)
from foretrace.prediction.memory import TOO_LARGE, fullest_rank, job_memory
from foretrace.prediction.notes import (
    guess_note,
    idle_device_note,
    job_notes,
    measured_note,
    merge_rank_notes,
    most_unexplained,
    overhead_notes,
    queued_note,
    stall_notes,
    unexplained_note,
)
from foretrace.prediction.overrides import RankOverrides, with_own_graphs
from foretrace.prediction.priced_step import CARRIED_NOTE
from foretrace.prediction.rank_models import MeasuredRank, PricedRank, as_they_met, with_arrivals
from foretrace.prediction.rates import add_power, add_rates, sustained_draw, totals
from foretrace.prediction.report import add_idle, build_report, set_range
from foretrace.prediction.uncertainty import measured_range_note
from foretrace.simulation.engine import DeadlockError
from foretrace.simulation.merge import JobTasks
from foretrace.simulation.task_graph import KERNEL, Timeline, total

if TYPE_CHECKING:
    from foretrace.platform.fabric import Fabric


def predict_on_own_machine(
    job: Job,
    fabric: Fabric | None = None,
    step: str | None = None,
    overrides: RankOverrides | None = None,
    gpus_per_node: int | None = None,
    measured: Job | None = None,
    drop_gaps: bool = False,
) -> StepReport:
    """Predict a measured job on its own machine: hosts and kernels as measured, collectives by a fabric.

    No time of a transfer is taken from the traces, but for one rank alone without a fabric. ``measured`` is the job
    that was measured, where this one was made of its first rank; ``drop_gaps`` leaves out host time that
    no model covers.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = [Op("aten::mm", start_us=0.0, end_us=8.0), Op("aten::relu", start_us=10.0, end_us=15.0)]
    >>> predict_on_own_machine(Job([Graph(OpTable.of(ops))])).step_ms
    0.015
    """
    overrides = overrides or RankOverrides()
    overrides.check(job.world)
    job = with_own_graphs(with_step(job, step), overrides)
    waits_included = False
    if measured is None and len(job.graphs) == 1 and not job.alike and fabric is None:
        waits_included = bool(job.graphs[0].collectives)
        job = replace(job, graphs=[replace(job.graphs[0], collectives=[])])
    ranks, notes = measured_ranks(job, step, drop_gaps)
    if measured:
        from foretrace.prediction.cpu_ranks import as_typical

        ranks, typical = as_typical(ranks, measured_ranks(measured, step, drop_gaps)[0])
        notes += typical
    shared: list[str] = []
    if fabric and fabric.crowd:
        from foretrace.prediction.cpu_ranks import with_oversubscription

        ranks, shared = with_oversubscription(ranks, fabric, job.world, (measured or job).world, gpus_per_node)
    cut = replace(job, graphs=[rank.graph for rank in ranks])
    done = simulate_job(cut, ranks, fabric, overrides, gpus_per_node)
    report = build_report(job, done, Device.matching(job.graphs[0].device))
    report.platform = OWN_MACHINE
    _add_period(report, job, done, step, bool(overrides.ranks or drop_gaps))
    if not all(graph.unprofiled.synced_ms for graph in job.graphs):
        works = max(rank.device_active_ms - (rank.wait_ms or 0.0) for rank in report.ranks)
        named = sum(row.ms for row in report.idle if row.cause in MEANINGS or row.cause == ALLOCATION)
        report.profiling_ms = max(report.step_ms - max(works, 0.0) - named, 0.0)
    report.fabric = fabric.name if fabric else None
    measured_as = [measured_range_note(job.graphs), *stall_notes(ranks, report.step_ms), *overhead_notes(ranks)]
    _forget_waits(report, waits_included)
    report.notes = job_notes(job, [*report.notes, *notes, *done.notes, *measured_as, *shared], waits_included)
    forget_unknown_limits(report)
    return report


def _forget_waits(report: StepReport, waits_included: bool) -> None:
    """How long one rank waits for others is unknown where these have no trace and its collectives take as measured."""
    if waits_included and report.missing:
        report.ranks[0].wait_ms = None


def _no_longer(period_ms: float | None, span_ms: float) -> float | None:
    """The time from step to step, at most that of a step with a sync at its end.

    Ranks that drift apart over several simulated steps, and spin while they wait, may seem to take longer.
    """
    return None if period_ms is None else min(period_ms, span_ms)


def _add_period(report: StepReport, job: Job, done: SimulatedJob, step: str | None, changed: bool) -> None:
    """The step time of a measured job, as `step_window` finds it at the simulated times.

    From the first rank's start to the last one's end is longer, by how far hosts run ahead of their devices and
    by how much later some ranks begin. A trace that marks no steps is taken as one step from end to end.
    """
    report.span_ms = simulated_ms = report.step_ms
    report.step_ms_back_to_back = _no_longer(measured_period_ms(done), report.span_ms)
    name = chosen_step(job, step)
    if name is None:
        return
    windows, unseen = [], False
    for rank, graph, cut, whole in zip(done.ranks, done.graphs, done.segments, job.graphs):
        begin, end = float(cut.start.min()), float(cut.end.max())
        if isinstance(rank, MeasuredRank) and not changed:
            end += rank.unseen_ms * 1e3
            unseen |= rank.unseen_ms > 0
        (mark,) = (span for span in whole.steps if span.name == name)
        window = window_of(graph, Span(name, begin, end), neighbours(whole, mark))
        if changed and window.mark_ms is not None and (period_ms := report.step_ms_back_to_back):
            # The steps beside it are as measured: it takes no less than one of many that are changed alike.
            window = window._replace(start=min(window.start, window.end - period_ms * 1e3))
        windows.append(window)
    longest = max(windows, key=lambda window: window.ms)
    report.mark_ms, report.span_ms = longest.mark_ms, max(simulated_ms, longest.ms)
    ratio = longest.ms / simulated_ms if simulated_ms else 1.0
    set_range(report, longest.ms, (report.low_ms or 0.0) * ratio, (report.high_ms or 0.0) * ratio)
    as_it_ran = unseen or longest.mark_ms is not None  # nothing waits at its end
    if as_it_ran or any(len(graph.steps) > 1 for graph in job.graphs):
        report.step_ms_back_to_back = longest.ms if as_it_ran else _no_longer(report.step_ms_back_to_back, longest.ms)
    add_idle(report, done, [window[:2] for window in windows])


def measured_ranks(job: Job, step: str | None = None, drop_gaps: bool = False) -> tuple[list[MeasuredRank], list[str]]:
    """The ranks of a measured job as they were, and notes on them."""
    name = chosen_step(job, step)
    ranks = [MeasuredRank.of(graph, name, drop_gaps) for graph in _from_zero(job.graphs)]
    graphs, notes = seen_by_all([rank.graph for rank in ranks])
    return as_they_met([rank.with_collectives_of(one) for rank, one in zip(ranks, graphs)]), notes


def predict_on_platform(
    what: Graph | Job,
    platform: Platform,
    kernels: str | None = None,
    step: str | None = None,
    overrides: RankOverrides | None = None,
    gpus_per_node: int | None = None,
    drop_gaps: bool = False,
) -> StepReport:
    """Predict all ranks of a job on a platform, which has a fabric where they exchange anything.

    As `foretrace.predict`; a graph is a job of one rank.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> job = Job([Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))]))])
    >>> 0.1 < predict_on_platform(job, Platform.named("h200")).step_ms < 1.0
    True
    """
    overrides = overrides or RankOverrides()
    job = with_step(Job([what], what.source) if isinstance(what, Graph) else what, step)
    overrides.check(job.world)
    job = with_own_graphs(job, overrides)

    def predicted(where: Platform) -> StepReport:
        done, ranks = _simulate_on_platform(job, where, kernels, step, overrides, gpus_per_node, drop_gaps)
        return _platform_report(job, where, done, ranks, overrides)

    report, limit = predicted(platform), platform.device.power_limit_w
    if limit is None or not report.sustained_ms or report.sustained_ms <= report.period_ms:
        return report
    active_ms = min(report.device_active_ms, report.period_ms)
    clock = _clock_within_limit(active_ms, report.sustained_ms, report.period_ms)
    within = predicted(_at_clock(platform, clock))
    within.keep_draw_of(report)
    within.notes.insert(0, _power_note(limit, clock))
    return within


def _platform_report(
    job: Job, platform: Platform, done: SimulatedJob, ranks: list[PricedRank], overrides: RankOverrides
) -> StepReport:
    """The report of a job that was simulated on a platform, with its rates, its power and its notes."""
    report = build_report(job, done, platform.device)
    report.platform, report.fabric = platform.name, platform.fabric.name if platform.fabric else None
    stack_notes = []
    if platform.stack is not None:
        from foretrace.platform.stack import widened  # most predictions are under none

        report.stack, stack_notes = platform.stack.name, [platform.stack.note()]
        low_ms, high_ms = widened(report.step_ms, report.low_ms, report.high_ms, platform.stack.spread)
        set_range(report, report.step_ms, low_ms, high_ms)
    if unexplained := most_unexplained(ranks):
        low_ms, high_ms = (ms or report.step_ms for ms in (report.low_ms, report.high_ms))
        set_range(report, report.step_ms, low_ms, high_ms + unexplained.here)
    if any(rank.step.gaps for rank in ranks):
        from foretrace.prediction.gaps import carried_rows

        report.carried = carried_rows([rank.step.gaps for rank in ranks])
    period = back_to_back_ms(ranks, done.matches, done.transfers.typical, platform.device, overrides.slow_host)
    report.step_ms_back_to_back = _no_longer(period, report.step_ms)
    done_by_rank = [totals(rank.dispatched.calls, rank.step, platform.device) for rank in ranks]
    add_rates(report, done_by_rank)
    add_power(report, done_by_rank, platform.device)
    rank_notes = merge_rank_notes({rank.graph.rank: rank.notes for rank in ranks})
    waits_included = len(ranks) == 1 and ranks[0].measured_collectives
    _forget_waits(report, waits_included)
    report.notes = job_notes(
        job,
        [
            *stack_notes,
            *unexplained_note(ranks),
            *rank_notes,
            *done.notes,
            *idle_device_note(ranks, platform),
            *queued_note(ranks),
            *guess_note(report),
            *measured_note(report, job, platform),
        ],
        waits_included,
    )
    return report


def priced_ranks(
    job: Job,
    platform: Platform,
    kernels: str | None,
    step: str | None,
    keep_collectives: bool = False,
    drop_gaps: bool = False,
) -> list[PricedRank]:
    """The ranks of a job with the costs of a platform.

    The collectives of one rank without others are kernels like any other where their time was measured, or where there
    is no fabric that could price them.
    """
    name = chosen_step(job, step)
    cuts, notes = seen_by_all([cut_to_step(graph, name)[0] for graph in job.graphs], leave_out=False)
    ranks = [PricedRank.of(graph, name, platform, kernels, cut, drop_gaps) for graph, cut in zip(job.graphs, cuts)]
    ranks[0] = replace(ranks[0], notes=(*ranks[0].notes, *notes))
    if len(ranks) == 1 and not job.alike:
        (rank,) = ranks
        measured = keeps_measured_kernels(rank.graph, platform, kernels) and not keep_collectives
        if measured or platform.fabric is None:
            alone = with_arrivals(rank.tasks.tasks, np.zeros(0, np.int64))
            return [replace(rank, graph=replace(rank.graph, collectives=[]), tasks=alone)]
    return ranks


def _simulate_on_platform(
    job: Job,
    platform: Platform,
    kernels: str | None,
    step: str | None,
    overrides: RankOverrides,
    gpus_per_node: int | None,
    drop_gaps: bool,
) -> tuple[SimulatedJob, list[PricedRank]]:
    if not job.graphs:
        raise ForetraceError(f"{job.source or 'the job'} holds no rank", "Record the job again.")
    ranks = priced_ranks(job, platform, kernels, step, bool(overrides.slow_link), drop_gaps)
    cut = replace(job, graphs=[rank.graph for rank in ranks])
    fabric = platform.fabric
    if fabric is None and any(graph.collectives for graph in cut.graphs):
        raise ForetraceError(
            f"{platform.name} has no fabric, and the ranks communicate",
            "Name one with --fabric: `foretrace platform list` shows them.",
        )
    if fabric and fabric.crowd:  # calls were measured with as many ranks at once
        from foretrace.prediction.cpu_ranks import with_oversubscription

        ranks, _ = with_oversubscription(ranks, fabric, job.world, job.world, gpus_per_node)
    return simulate_job(cut, ranks, fabric, overrides, gpus_per_node), ranks


class StepFigures(NamedTuple):
    """Time and memory of a step, in milliseconds and bytes: what a sweep asks for hundreds of times."""

    step_ms: float
    next_ms: float
    """From the end of one step to the end of the next."""
    device_active_ms: float
    """Time in which at least one kernel, copy or collective runs; the mean over the ranks, as in `StepReport`."""
    memory_bytes: int | None
    """Allocated on the fullest rank."""
    reserved_bytes: int | None
    """Reserved there by PyTorch's allocator."""
    fits: bool | None
    energy_j: float | None
    """Of all devices, in a step of many."""
    sustained_ms: float | None = None
    """From step to step while many are repeated, within the power limit; None where the draw is not known."""


def step_figures(
    job: Job, platform: Platform, gpus_per_node: int | None = None, drop_gaps: bool = False
) -> tuple[StepFigures, list[str]]:
    """Time and memory of a job as `predict_on_platform` has them, without the reasons; and what its kernels and
    collectives rest on, and which measured host time is in it.

    Kernel times are those of the platform's models.
    """
    figures, active_ms, notes = _figures(job, platform, gpus_per_node, drop_gaps)
    sustained_ms, limit = figures.sustained_ms, platform.device.power_limit_w
    if limit is None or sustained_ms is None or sustained_ms <= figures.next_ms:
        return figures, notes
    clock = _clock_within_limit(active_ms, sustained_ms, figures.next_ms)
    slower, *_ = _figures(job, _at_clock(platform, clock), gpus_per_node, drop_gaps, figures)
    joules = figures.energy_j * slower.next_ms / sustained_ms if figures.energy_j else None
    return slower._replace(energy_j=joules, sustained_ms=slower.next_ms), [_power_note(limit, clock), *notes]


def _clock_within_limit(active_ms: float, sustained_ms: float, period_ms: float) -> float:
    """Share of its clock at which a device stays within its power limit while steps are repeated."""
    return active_ms / (active_ms + sustained_ms - period_ms)


def _at_clock(platform: Platform, clock: float) -> Platform:
    return replace(platform.scaled(clock=clock), name=platform.name)


def _power_note(limit: float, clock: float) -> str:
    return f"the clock falls to {clock:.0%}, which keeps the GPU within {limit:g} W"


def _figures(
    job: Job, platform: Platform, gpus_per_node: int | None, drop_gaps: bool, known: StepFigures | None = None
) -> tuple[StepFigures, float, list[str]]:
    """Figures of a job at the full clock, milliseconds of the devices' work, and notes. Memory is that of
    ``known`` where it is given.
    """
    from foretrace.cost_models.kernels.cross_device import scaling_notes  # here, since most predictions need none

    ranks = priced_ranks(job, platform, "model", None, drop_gaps=drop_gaps)
    fabric = platform.fabric
    matches, _ = visible_collectives(replace(job, graphs=[rank.graph for rank in ranks]), ranks)
    basis = fabric_assumptions(matches, fabric, job.world, gpus_per_node)
    transfers = price_transfers(matches, fabric, gpus_per_node)
    try:
        tasks, timeline, _ = run_ranks([rank.tasks for rank in ranks], ranks, matches, transfers.typical)
    except DeadlockError:
        raise ForetraceError(
            "deadlock, the ranks wait for each other forever", "foretrace predict says which of them, and where."
        ) from None
    step_ms = timeline.span / 1e3
    next_ms = back_to_back_ms(ranks, matches, transfers.typical, platform.device)
    next_ms = step_ms if next_ms is None else min(next_ms, step_ms)
    done = [totals(rank.dispatched.calls, rank.step, platform.device) for rank in ranks]
    device_active_ms = _device_active_ms(tasks, timeline)
    active_ms = min(next_ms, device_active_ms)
    drawn = sustained_draw(PowerModel.of(platform.device), done, next_ms, active_ms)
    joules = drawn[0] * drawn[1] / 1e3 * job.world if drawn else None
    figures = StepFigures(step_ms, next_ms, device_active_ms, None, None, None, joules, drawn[1] if drawn else None)
    if known is not None:
        figures = known._replace(step_ms=step_ms, next_ms=next_ms, device_active_ms=device_active_ms, energy_j=joules)
    elif need := fullest_rank(job_memory([rank.uncut for rank in ranks], ranks, platform.device)):
        fits = None if need.verdict is None else need.verdict != TOO_LARGE
        figures = figures._replace(memory_bytes=need.allocated, reserved_bytes=need.reserved, fits=fits)
    carried = {rank.graph.rank: [note for note in rank.notes if CARRIED_NOTE in note] for rank in ranks}
    notes = [
        *scaling_notes(ranks[0].dispatched.calls, platform),
        *basis,
        *unexplained_note(ranks),
        *merge_rank_notes(carried),
    ]
    return figures, active_ms, notes


def _device_active_ms(job: JobTasks, timeline: Timeline) -> float:
    """How long the devices of a job work, the mean over its ranks."""
    active_us = []
    for position, rank in enumerate(job.ranks):
        on_device, own = rank.tasks.kind == KERNEL, job.rank_timeline(position, timeline)
        active_us.append(total(own.start[on_device], own.end[on_device]))
    return float(np.mean(active_us)) / 1e3


def _from_zero(graphs: list[Graph]) -> list[Graph]:
    """The graphs with their first event at zero."""
    tables = [table for graph in graphs for table in (graph.ops, graph.calls, graph.kernels, graph.activities)]
    begins = [float(np.nanmin(table.start)) for table in tables if np.isfinite(table.start).any()]
    return [graph.shifted(-min(begins, default=0.0)) for graph in graphs]
