"""A job's time and memory alone, for who asks for hundreds of them: as `predict_job` has them, without the reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foretrace.forecast.jobs.predict import NO_FABRIC
from foretrace.forecast.jobs.rank import PricedRank
from foretrace.forecast.jobs.simulated import grounds, meetings_of, run_together
from foretrace.forecast.jobs.transfers import price_transfers
from foretrace.forecast.jobs.unrolled import back_to_back
from foretrace.forecast.memory import peak_memory, workspaces
from foretrace.forecast.quick import Figures
from foretrace.graph import ForetraceError, Job
from foretrace.platform.platform import Platform
from foretrace.simulation.turns import StuckError


def job_figures(job: Job, platform: Platform, gpus_per_node: int | None) -> tuple[Figures, list[str]]:
    """A job's figures, with kernel times by the platform's models, and what the times of its collectives rest on.

    Memory is that of the fullest rank.

    Parameters
    ----------
    job
        All ranks, cut to one step.
    platform
        Where every rank runs; it has a fabric where they exchange anything.
    gpus_per_node
        As many as the fabric's nodes have, where left out.

    >>> from foretrace.graph import Graph, Op, OpTable, Tensor
    >>> square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    >>> job = Job([Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))]))])
    >>> figures, _ = job_figures(job, Platform.named("h200"), None)
    >>> figures.next_ms < figures.step_ms
    True
    """
    ranks = [PricedRank.of(graph, None, platform, "model") for graph in job.graphs]
    met, _ = meetings_of(replace(job, graphs=[rank.graph for rank in ranks]), ranks)
    fabric = platform.fabric or NO_FABRIC
    rests_on = grounds(met, fabric, job.world, gpus_per_node)
    transfers = price_transfers(met, fabric, gpus_per_node)
    try:
        _, timeline, _ = run_together([rank.part for rank in ranks], ranks, met, transfers.typical)
    except StuckError:
        raise ForetraceError(
            "the ranks wait for each other forever", "foretrace predict says which of them, and where."
        ) from None
    step_ms = timeline.span / 1e3
    next_ms = back_to_back(ranks, met, transfers.typical, platform.device)
    memory = max(filter(None, (_held(rank, platform) for rank in ranks)), default=None)
    found = Figures(
        step_ms=step_ms,
        next_ms=step_ms if next_ms is None else next_ms,
        device_ms=float(np.mean([rank.step.work.typical.sum() for rank in ranks])) / 1e3,
        memory_bytes=memory,
        fits=None if memory is None else memory <= platform.device.memory_gb * 1e9,
    )
    return found, rests_on


def _held(rank: PricedRank, platform: Platform) -> int | None:
    held = peak_memory(rank.uncut)
    return None if held is None else held + workspaces(rank.flat, platform.device)
