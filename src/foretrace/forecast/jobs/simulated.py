"""A job simulated: its collectives matched and priced, its ranks put together, and when each of them does what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.costs.collectives import assumptions
from foretrace.forecast.host import Segments
from foretrace.forecast.jobs.agreement import Meeting, agreed
from foretrace.forecast.jobs.contention import with_contention
from foretrace.forecast.jobs.rank import Rank
from foretrace.forecast.jobs.supposed import Supposed, supposed_parts
from foretrace.forecast.jobs.together import Together, together
from foretrace.forecast.jobs.transfers import Transfers, price_transfers
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.platform.fabric import Fabric
from foretrace.simulate.program import Timeline
from foretrace.simulate.turns import StuckError


@dataclass(frozen=True)
class Simulated:
    """A job that was simulated."""

    ranks: list[Rank]
    met: list[Meeting]
    transfers: Transfers
    program: Together
    timeline: Timeline
    graphs: list[Graph]
    """The ranks at the simulated times."""
    segments: list[Segments]


def simulate_job(
    job: Job, ranks: list[Rank], fabric: Fabric, supposed: Supposed, gpus_per_node: int | None
) -> tuple[Simulated, list[str]]:
    """A job whose ranks are at hand on a fabric, with what is supposed of them; and what the reader should know."""
    met, notes = agreed(job)
    rests_on = assumptions(fabric, job.world, gpus_per_node) if met else []
    transfers = price_transfers(met, fabric, gpus_per_node, supposed.slow_link)
    parts, how = supposed_parts(ranks, supposed)
    program, shares = together(parts, met, transfers.typical), [rank.beside for rank in ranks]
    try:
        program, timeline = with_contention(program, shares)
    except StuckError as stuck:
        raise _knot(job, program, stuck) from None
    if supposed.ranks:
        usual = price_transfers(met, fabric, gpus_per_node).typical
        _, as_it_is = with_contention(together([rank.part for rank in ranks], met, usual), shares)
        before = as_it_is.span / 1e3
        change = timeline.span / 1e3 / before - 1
        how.append(f"without what is supposed the step takes {before:.2f} ms: that makes {change:+.1%}")
    at = [rank.at(program.times(position, timeline)) for position, rank in enumerate(ranks)]
    graphs, segments = [graph for graph, _ in at], [cut for _, cut in at]
    done = Simulated(ranks, met, transfers, program, timeline, graphs, segments)
    return done, [*supposed.words(), *how, *notes, *rests_on]


def _knot(job: Job, program: Together, stuck: StuckError) -> ForetraceError:
    """Ranks whose collectives are the same, but wait for each other in a circle: groups called in another order."""
    held = []
    for task, other in stuck.held.items():
        position = int(np.searchsorted(program.first, task, "right")) - 1
        if position >= len(job.graphs) or other < program.first[-1]:
            continue
        graph = job.graphs[position]
        number = int(np.flatnonzero(program.transfer[position] == other)[0])
        one = graph.collectives[number]
        held.append(
            f"rank {graph.rank} waits in {one.kind} of group {one.group or 'without a name'} (its {number + 1}.)"
        )
    return ForetraceError(
        f"the ranks wait for each other forever: {'; '.join(held[:4])}",
        "Groups that share ranks must be called in the same order on all of these.",
    )
