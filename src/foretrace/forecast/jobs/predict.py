"""Predict a job of several ranks: all of them in one simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.forecast.forecast import Forecast
from foretrace.forecast.jobs.crowded import as_typical, crowded
from foretrace.forecast.jobs.doubt import add_range
from foretrace.forecast.jobs.rank import KeptRank, PricedRank
from foretrace.forecast.jobs.shown import shown_by_all
from foretrace.forecast.jobs.simulated import simulate_job
from foretrace.forecast.jobs.supposed import Supposed
from foretrace.forecast.jobs.supposing import with_own_graphs
from foretrace.forecast.jobs.unrolled import back_to_back
from foretrace.forecast.jobs.variation import words_of
from foretrace.forecast.jobs.words import told
from foretrace.forecast.notes import of_ranks
from foretrace.forecast.rates import add_rates, totals
from foretrace.forecast.steps import chosen_step
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform

OWN_MACHINE = "its own machine"
NO_FABRIC = Fabric("none", (), "nothing is exchanged")
STALLED = 0.01
"""A device that stands still unexplained for more than this part of the step is told of."""


def keep_machine(
    job: Job,
    fabric: Fabric,
    step: str | None = None,
    supposed: Supposed | None = None,
    gpus_per_node: int | None = None,
    measured: Job | None = None,
) -> Forecast:
    """Predict a measured job on its own machine: hosts and kernels as they were, collectives by a fabric.

    Parameters
    ----------
    job
        Profiled ranks, on one clock.
    fabric
        What joins them: no time of a transfer is taken from the traces.
    step
        Which step; the one of median length where left out.
    supposed
        What is different from the measured job.
    gpus_per_node
        As many as the fabric's nodes have, where left out.
    measured
        The measured job, where this one was made of its first rank.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = [Op("aten::mm", start_us=0.0, end_us=8.0), Op("aten::relu", start_us=10.0, end_us=15.0)]
    >>> keep_machine(Job([Graph(OpTable.of(ops))]), NO_FABRIC).step_ms
    0.015
    """
    supposed = supposed or Supposed()
    supposed.check(job.world)
    job = with_own_graphs(job, supposed)
    ranks, notes = kept_ranks(job, step)
    if measured:
        ranks, typical = as_typical(ranks, kept_ranks(measured, step)[0])
        notes += typical
    ranks, beside = crowded(ranks, fabric, job.world, (measured or job).world, gpus_per_node)
    cut = replace(job, graphs=[rank.graph for rank in ranks])
    done, more = simulate_job(cut, list(ranks), fabric, supposed, gpus_per_node)
    device = Device.matching(job.graphs[0].device)
    forecast = told(job, done, device)
    forecast.platform = OWN_MACHINE
    forecast.fabric = None if fabric is NO_FABRIC else fabric.name
    add_range(forecast, done)
    kept_as = [words_of(job.graphs), *_stalls(ranks, forecast.step_ms), *_slowdowns(ranks)]
    forecast.notes = _notes(job, [*notes, *more, *kept_as, *beside])
    return forecast


def kept_ranks(job: Job, step: str | None = None) -> tuple[list[KeptRank], list[str]]:
    """The ranks of a measured job as they were, and what the reader should know of them.

    >>> from foretrace.graph import Op, OpTable
    >>> ops = [Op("aten::mm", start_us=0.0, end_us=8.0), Op("aten::relu", start_us=10.0, end_us=15.0)]
    >>> (rank,), notes = kept_ranks(Job([Graph(OpTable.of(ops))]))
    >>> rank.part.program.duration.tolist(), notes
    ([8.0, 2.0, 5.0], [])
    """
    name = chosen_step(job, step)
    ranks = [KeptRank.of(graph, name) for graph in _from_zero(job.graphs)]
    graphs, notes = shown_by_all([rank.graph for rank in ranks])
    return [rank if rank.graph is one else KeptRank.of(one, None) for rank, one in zip(ranks, graphs)], notes


def predict_job(
    job: Job,
    platform: Platform,
    kernels: str | None = None,
    step: str | None = None,
    supposed: Supposed | None = None,
    gpus_per_node: int | None = None,
) -> Forecast:
    """Predict all ranks of a job on a platform, which has a fabric where they exchange anything.

    Parameters
    ----------
    job, kernels, step
        As in `foretrace.predict`.
    platform
        Where every rank runs.
    supposed
        Ranks that are not as the platform is.
    gpus_per_node
        As many as the fabric's nodes have, where left out.

    >>> from foretrace.graph import Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> job = Job([Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))]))])
    >>> 0.1 < predict_job(job, Platform.named("h200")).step_ms < 1.0
    True
    """
    supposed = supposed or Supposed()
    supposed.check(job.world)
    name = chosen_step(job, step)
    job = with_own_graphs(job, supposed)
    ranks = [PricedRank.of(graph, name, platform, kernels) for graph in job.graphs]
    cut = replace(job, graphs=[rank.graph for rank in ranks])
    joined = platform.fabric or _no_fabric(platform, cut)
    ranks, _ = crowded(ranks, joined, job.world, job.world, gpus_per_node)  # measured at once with as many
    done, notes = simulate_job(cut, list(ranks), joined, supposed, gpus_per_node)
    forecast = told(job, done, platform.device)
    forecast.platform, forecast.fabric = platform.name, platform.fabric.name if platform.fabric else None
    us = done.transfers.typical
    forecast.step_ms_back_to_back = back_to_back(ranks, done.met, us, platform.device, supposed.slow_host)
    add_rates(forecast, [totals(rank.flat.calls, rank.step, platform.device) for rank in ranks])
    add_range(forecast, done)
    forecast.notes = _notes(job, [*of_ranks({rank.graph.rank: rank.notes for rank in ranks}), *notes])
    return forecast


def _no_fabric(platform: Platform, job: Job) -> Fabric:
    if any(graph.collectives for graph in job.graphs):
        raise ForetraceError(
            f"{platform.name} has no fabric, and the ranks exchange data",
            "Name one with --fabric: `foretrace platform list` shows them.",
        )
    return NO_FABRIC


def _from_zero(graphs: list[Graph]) -> list[Graph]:
    """The graphs with the first thing that any of them saw at zero."""
    tables = [table for graph in graphs for table in (graph.ops, graph.calls, graph.kernels) if len(table)]
    begins = [float(np.nanmin(table.start)) for table in tables if np.isfinite(table.start).any()]
    return [graph.shifted(-min(begins, default=0.0)) for graph in graphs]


def _stalls(ranks: list[KeptRank], step_ms: float) -> list[str]:
    still = {rank.graph.rank: rank.stalled_us / 1e3 for rank in ranks if rank.stalled_us > STALLED * step_ms * 1e3}
    shares = {rank: f"{ms:.1f} ms ({100 * ms / step_ms:.0f} % of the step)" for rank, ms in still.items()}
    said = ", ".join(f"rank {rank} for {share}" for rank, share in shares.items())
    reason = "although nothing is seen to hold it up (somebody else uses it?): that is kept as it was, not predicted"
    return [f"work stands still, {said}, {reason}"] if still else []


def _slowdowns(ranks: list[KeptRank]) -> list[str]:
    low, high = (some(rank.slowdown for rank in ranks) for some in (min, max))
    if low == high == 1.0:
        return []
    by = f"{low:.2f} to {high:.2f}" if f"{low:.2f}" != f"{high:.2f}" else f"{high:.2f}"
    return [f"host times are brought to those of plain steps: the profiled one took {by} times as long"]


def _notes(job: Job, more: list[str]) -> list[str]:
    said = [*job.notes, *(note for graph in job.graphs for note in graph.notes)]
    if job.missing:
        ranks = "rank" if len(job.missing) == 1 else f"{len(job.missing):,} ranks"
        said.append(f"nobody waits for the {ranks} of {job.world:,} without a graph")
    if job.alike:
        said.append(f"ranks that do the same are simulated once: {len(job.graphs):,} for all {job.world:,}")
    return list(dict.fromkeys([*said, *more]))
