"""A job simulated: its collectives matched and priced, its ranks put together, and when each of them does what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrace.cost_models.collectives.pricing import assumptions
from foretrace.forecast.host import Segments
from foretrace.forecast.jobs.agreement import Meeting, agreed
from foretrace.forecast.jobs.contention import with_contention
from foretrace.forecast.jobs.lateness import lateness
from foretrace.forecast.jobs.rank import Rank
from foretrace.forecast.jobs.supposed import Supposed
from foretrace.forecast.jobs.supposing import supposed_parts
from foretrace.forecast.jobs.together import Part, Together, together
from foretrace.forecast.jobs.transfers import Transfers, price_transfers
from foretrace.graph import ForetraceError, Graph, Job
from foretrace.graph.tables import Floats
from foretrace.platform.fabric import Fabric
from foretrace.simulation.program import Timeline
from foretrace.simulation.turns import StuckError


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
    met, notes = meetings_of(job, ranks)
    rests_on = grounds(met, fabric, job.world, gpus_per_node)
    transfers = price_transfers(met, fabric, gpus_per_node, supposed.slow_link)
    parts, how = supposed_parts(ranks, supposed)
    try:
        program, timeline, late = run_together(parts, ranks, met, transfers.typical)
    except StuckError as stuck:
        raise _knot(job, together(parts, met, transfers.typical), stuck) from None
    if late.any():
        notes.append(_told_late(late, ranks))
    if supposed.ranks:
        usual = price_transfers(met, fabric, gpus_per_node).typical
        _, as_it_is, _ = run_together([rank.part for rank in ranks], ranks, met, usual)
        before = as_it_is.span / 1e3
        change = timeline.span / 1e3 / before - 1
        how.append(f"without what is supposed the step takes {before:.2f} ms: that makes {100 * change:+.1f} %")
    at = [rank.at(program.times(position, timeline)) for position, rank in enumerate(ranks)]
    graphs, segments = [graph for graph, _ in at], [cut for _, cut in at]
    done = Simulated(ranks, met, transfers, program, timeline, graphs, segments)
    return done, [*supposed.words(), *how, *notes, *rests_on]


def meetings_of(job: Job, ranks: Sequence[Rank]) -> tuple[list[Meeting], list[str]]:
    """The collectives that some rank comes to, and what the reader should know of them.

    A profile that lost the kernels of a collective does not show when its rank was there, nor who waited for it.
    """
    met, notes = agreed(job)
    there = [[ranks[graph].part.arrival[number] >= 0 for graph, number in meeting.calls] for meeting in met]
    unseen = {call.graph for meeting, seen in zip(met, there) if not any(seen) for call in meeting.calls}
    if unseen:
        which = ", ".join(str(job.graphs[position].rank) for position in sorted(unseen))
        notes.append(f"the device of rank {which} shows nothing of some collectives: nobody waits for these")
    return [meeting for meeting, seen in zip(met, there) if any(seen)], notes


def grounds(met: Sequence[Meeting], fabric: Fabric, world: int, gpus_per_node: int | None) -> list[str]:
    """What the times of collectives rest on; those of one rank alone rest on nothing.

    >>> grounds([Meeting("all_reduce", 8, (0, 1), ())], Fabric.named("h100-nvswitch"), 2, None)
    ['nobody measured fabric h100-nvswitch: its times come from the specification of its links']
    """
    return assumptions(fabric, world, gpus_per_node) if any(len(one.ranks) > 1 for one in met) else []


def run_together(
    parts: Sequence[Part], ranks: Sequence[Rank], met: Sequence[Meeting], us: Floats
) -> tuple[Together, Timeline, Floats]:
    """All ranks' tasks with what slows them, when they run, and how much later collectives are than who arrives.

    Parameters
    ----------
    parts
        The ranks' tasks, as they shall be.
    ranks
        These ranks.
    met
        Their collectives.
    us
        What each of these takes from the last arrival on.
    """
    alone, shares, law = together(parts, met, us), [rank.beside for rank in ranks], ranks[0].slowing
    program, timeline = with_contention(alone, shares, law)
    late = lateness(program, timeline, met, [rank.uneven for rank in ranks])
    if late.any():
        program, timeline = with_contention(alone.delayed(late), shares, law)
    return program, timeline, late


def _told_late(late: Floats, ranks: Sequence[Rank]) -> str:
    """What was added since ranks are never equally fast."""
    by, ms = max(rank.uneven for rank in ranks), late.sum() / 1e3
    return f"ranks that do the same are taken to be apart by {100 * by:.0f} %: they wait {ms:.1f} ms for the last"


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
