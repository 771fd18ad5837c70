"""A plan as a whole job: all ranks simulated together, with the rest of the model's step.

The search adds costs up. Here each rank's host and device do one thing after the other, collectives start when their
last rank arrives, and what may run beside something else does. Lookups take what the search says they take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foretrace.forecast.forecast import Forecast
from foretrace.forecast.jobs.doubt import add_range
from foretrace.forecast.jobs.rank import PricedRank, part_of
from foretrace.forecast.jobs.simulated import simulate_job
from foretrace.forecast.jobs.supposed import Supposed
from foretrace.forecast.jobs.unrolled import back_to_back
from foretrace.forecast.rest import after_a_wait
from foretrace.forecast.timetable import timetable
from foretrace.graph import Graph, Job
from foretrace.platform.device import Device
from foretrace.sharding.costing import Costing
from foretrace.sharding.hits import Floats
from foretrace.sharding.kinds import ACROSS, COPIES, IDS, NODE_SUMS, POOLED, SUMS
from foretrace.sharding.lookups import Priced, graph_of
from foretrace.sharding.plan import Plan
from foretrace.sharding.ranks import Ranks
from foretrace.transforms.draft import Group
from foretrace.transforms.parallel.hybrid import RankStep, TableShare, Transfer, sharded_steps

FORWARD = ((POOLED, "all_to_all"), (SUMS, "reduce_scatter"), (NODE_SUMS, "reduce_scatter"), (ACROSS, "all_to_all"))
"""The collectives that bring embeddings to the ranks of their samples, in order."""
BACKWARD = ((POOLED, "all_to_all"), (SUMS, "all_gather"), (ACROSS, "all_to_all"), (NODE_SUMS, "all_gather"))
"""Those that bring gradients back."""
NARROW = {"fp16": "float16", "bf16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3fn"}
"""The dtype that embeddings are converted into before they are sent."""


class Simulated(NamedTuple):
    """Milliseconds of the whole step, one after the other: about, 10th and 90th percentile."""

    step_ms: float
    low_ms: float
    high_ms: float


def simulate_plan(step: Graph, costing: Costing, plan: Plan) -> Simulated:
    """The step of all ranks under a plan.

    Parameters
    ----------
    step
        That of one rank alone, which has all tables.
    costing
        What the plan was made by; its platform is where the ranks run.
    plan
        Where the tables lie.
    """
    where = costing.kernels.platform.having(fabric=costing.exchange.fabric)
    made = steps_of_ranks(step, costing, plan)
    lookups = _lookups(costing, plan)
    ranks = [
        _with_lookups(PricedRank.of(one.graph, None, where, "model"), one, lookups, number, where.device)
        for number, one in enumerate(made)
    ]
    job = Job([rank.graph for rank in ranks], step.source)
    done, _ = simulate_job(job, list(ranks), costing.exchange.fabric, Supposed(), costing.ranks.per_node)
    forecast = Forecast(source=step.source, world=job.world, step_ms=done.timeline.span / 1e3)
    add_range(forecast, done)
    settled = back_to_back(ranks, done.met, done.transfers.typical, where.device) or forecast.step_ms
    low, high = (bound / forecast.step_ms for bound in (forecast.low_ms, forecast.high_ms))
    return Simulated(settled, settled * low, settled * high)


def steps_of_ranks(step: Graph, costing: Costing, plan: Plan) -> list[RankStep]:
    """The step of each rank under a plan.

    Parameters
    ----------
    step
        That of one rank alone, which has all tables.
    costing
        What the plan was made by.
    plan
        Where the tables lie.
    """
    shards, rank = costing.held(plan)
    nbytes, _ = costing.exchanged(plan, shards, rank)
    shares = []
    for number in range(costing.ranks.world):
        graph, _, phase = graph_of(costing.kernels.calls(shards.pick(rank == number)))
        shares.append(_share(graph, phase.astype(bool).tolist(), costing.ranks, number, nbytes))
    return sharded_steps(step, shares)


def _share(
    lookups: Graph, backward: Sequence[bool], ranks: Ranks, rank: int, nbytes: Mapping[str, Floats]
) -> TableShare:
    """What a rank looks up and sends; transfers in which no rank of the group sends anything are left out."""

    def transfer(what: str, kind: str) -> Transfer | None:
        group = _group(ranks, rank, what)
        if group.size < 2 or not max(nbytes[what][member] for member in group.ranks):
            return None
        return Transfer(kind, group, round(nbytes[what][rank]))

    def transfers(calls: Sequence[tuple[str, str]]) -> list[Transfer]:
        *every, inner, outer = (transfer(*call) for call in calls)
        if inner and outer:
            outer = outer._replace(forwards=True)
        return [one for one in (*every, inner, outer) if one is not None]

    sent_as = NARROW.get(ranks.sent_as, "")
    elements = round(sum(nbytes[what][rank] for what in (POOLED, SUMS, NODE_SUMS)) / ranks.sent_bytes)
    return TableShare(
        lookups, backward, transfer(IDS, "all_to_all"), transfers(FORWARD), transfers(BACKWARD),
        transfer(COPIES, "all_reduce"), sent_as, elements,
    )  # fmt: skip


def _group(ranks: Ranks, rank: int, what: str) -> Group:
    node, place = divmod(rank, ranks.per_node)
    if what == NODE_SUMS:
        return Group(f"node {node}", tuple(ranks.of_node(node)))
    if what == ACROSS:
        return Group(f"across nodes {place}", tuple(range(place, ranks.world, ranks.per_node)))
    # Ids overlap with everything else: they have a group, and so a stream, of their own.
    return Group(IDS if what == IDS else "tables", tuple(range(ranks.world)))


def _lookups(costing: Costing, plan: Plan) -> Priced:
    """What lookups take on each rank's device; the slowest one's, wherever rows that are hit often happen to lie."""
    pieces, rank = costing.held(plan)
    priced = costing.kernels.devices(pieces, costing.each(plan), rank, costing.ranks.world)
    estimate = costing.estimate(plan)
    uneven = estimate.slowest / max(float(estimate.lookups.max()), 1e-9)
    return Priced(*(us * uneven for us in priced))


def _with_lookups(rank: PricedRank, step: RankStep, lookups: Priced, number: int, device: Device) -> PricedRank:
    """A rank whose lookups take what the search says, each its part of that."""
    work = rank.step.work
    low, typical, high = work.low.copy(), work.typical.copy(), work.high.copy()
    for phase, rows in enumerate(step.lookups):
        ours = np.isin(rank.flat.rows[work.call], rows)
        said = max(float(work.typical[ours].sum()), 1e-9)
        for times, us in zip((low, typical, high), lookups):
            times[ours] = work.typical[ours] * (us[number, phase] / said)
    priced = replace(rank.step, work=replace(work, low=low, typical=typical, high=high))
    table = after_a_wait(priced, timetable(priced, device))
    kernels = np.array([one.kernel for one in rank.graph.collectives], np.int64)
    return replace(rank, step=priced, table=table, part=part_of(table, kernels))
